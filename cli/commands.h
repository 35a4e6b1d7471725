// The subcommands of `quire`. Each adds itself to the application; its callback prints, or throws
// quire::Error. Command line layer.
#pragma once
#include <CLI/CLI.hpp>

namespace quire::cli {

void add_info(CLI::App& app);
void add_explain(CLI::App& app);
void add_draw(CLI::App& app);
void add_bench(CLI::App& app);
void add_attend(CLI::App& app);
void add_demo(CLI::App& app);
void add_play(CLI::App& app);

}  // namespace quire::cli
