# What people type. Every target is a few lines over scripts/, which can also be run by themselves.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help deps build demo docs test test-amx test-arm check-all play bench bench-peers format lint clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

deps: ## Install what is missing (apt) and make .venv
	@scripts/install-deps
	@scripts/make-venv

build: deps ## Build everything into build/release
	@scripts/build release

demo: deps ## Build what it takes for this machine, then show what Quire does: about two minutes
	@SECONDS=0; scripts/build demo:demo_programs && QUIRE_DEMO_SECONDS=$$((115 - SECONDS)) scripts/demo

docs: build ## Build the documentation as a site into build/site, every link checked
	@.venv/bin/mkdocs build --quiet

test: ## What CI runs: formats, types, -Werror, C++ tests on the ISAs of this machine, sanitizers, Python tests
	@scripts/test

test-amx: ## Kernels, attention and bits on AMX: with its hardware, if there is any, and with its instructions emulated
	@scripts/test-amx

test-arm: deps ## Cross-compile for AArch64 and run the C++ tests under qemu
	@scripts/test-arm

check-all: ## test, test-amx, test-arm, and what takes longer: clang, TSan, coverage, long property runs
	@scripts/check-all

play: deps ## Build the page to play on (emscripten) and the program that writes it: quire play -o play.html
	@scripts/install-deps --all
	@scripts/build-play
	@scripts/build release:quire_cli

bench: build ## Run the benchmarks with short settings
	@scripts/bench

bench-peers: build ## Install other implementations of attention and time Quire against them
	@scripts/bench-peers

format: deps ## Format all C++ and Python files in place
	@scripts/format

lint: deps ## Formats and rules of C++ and Python: clang-format, ruff, mypy
	@scripts/lint

clean: ## Remove what was built; .venv stays
	rm -rf build demo
