"""Serves a model with vLLM on Quire over loopback, with one worker and with two, and compares what they answer.

Needs the environment that scripts/vllm-venv makes, or any with vLLM for CPUs and Quire. The model is small and has random weights; nothing is
fetched. Run it with the number of workers, or without for one and two in turn:

    python examples/serve_vllm.py [WORKERS]
"""

import importlib.metadata
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

PROMPTS = [[5, 17, 99], list(range(10, 90)), [7] * 40]


def save_model(folder):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=300, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=8,
        num_key_value_heads=2, head_dim=32, max_position_embeddings=1024, initializer_range=0.15,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def ask(url, question=None):
    data = None if question is None else json.dumps(question).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        text = answer.read()
    return json.loads(text) if text else None


def serve(folder, workers):
    """Starts a server; returns its process and address when it answers."""
    port = free_port()
    cores = sorted(os.sched_getaffinity(0))
    environment = {
        **os.environ,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "|".join(str(cores[i % len(cores)]) for i in range(workers)),
        "HF_HUB_OFFLINE": "1",
    }
    command = f"""-m vllm.entrypoints.openai.api_server --model {folder} --served-model-name small --host 127.0.0.1 --port {port}
        --tensor-parallel-size {workers} --dtype float32 --max-model-len 512 --max-num-seqs 8
        --skip-tokenizer-init --enforce-eager"""
    process = subprocess.Popen(
        [sys.executable, *command.split()],
        env=environment,
        stdout=sys.stderr,
        stderr=sys.stderr,
        start_new_session=True,
    )
    address = f"http://127.0.0.1:{port}"
    for _ in range(600):
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}")
        try:
            ask(f"{address}/health")
            return process, address
        except (urllib.error.URLError, ConnectionError):
            time.sleep(1)
    raise RuntimeError("the server does not answer")


def answers(workers, folder):
    process, address = serve(folder, workers)
    try:
        found = []
        for prompt in PROMPTS:
            question = dict(
                model="small", prompt=prompt, max_tokens=16, temperature=0, ignore_eos=True, return_token_ids=True
            )
            choice = ask(f"{address}/v1/completions", {**question, "detokenize": False})["choices"][0]
            found.append(choice["token_ids"])
        return found
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)


def main():
    plugins = importlib.metadata.entry_points(group="vllm.general_plugins")
    if "quire" not in {one.name for one in plugins}:
        raise SystemExit(
            "vLLM would not find Quire here: install the package, or put build/release/python on PYTHONPATH"
        )
    given = [int(one) for one in sys.argv[1:]] or [1, 2]
    with tempfile.TemporaryDirectory() as folder:
        save_model(folder)
        found = {workers: answers(workers, folder) for workers in given}
    for workers, tokens in found.items():
        print(f"{workers} worker{'s' * (workers > 1)}: {tokens[0]}")
    if len(found) > 1:
        first, *others = found.values()
        same = all(one == first for one in others)
        print("the same tokens" if same else f"different tokens: {found}")
        return 0 if same else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
