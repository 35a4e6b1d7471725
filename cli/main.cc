// The program `quire`: subcommands, exit codes, errors on stderr. What a subcommand prints is in
// its own file.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "commands.h"

namespace {

// Options whose value may be a formula: "--score -score" means "--score=-score".
bool takes_formula(const std::string& option, const std::string& command) {
  return option == "--score" || (option == "--mask" && command == "attend");
}

// A formula may begin with a minus: "-score" is no option. It goes behind `--`, where CLI11 takes
// no options, or to the option it follows.
std::vector<std::string> arguments(int argc, char** argv) {
  std::vector<std::string> options, formulas;
  bool separated = false;  // the user said where options end
  for (int i = 1; i < argc; ++i) {
    const std::string text = argv[i];
    separated |= text == "--";
    const bool minus = !separated && text.size() > 1 && text[0] == '-' && text[1] != '-';
    const bool is_value = minus && i > 1 && takes_formula(argv[i - 1], argv[1]);
    const bool formula = minus && text.size() > 2 && !text.starts_with("-o");
    if (is_value)
      options.back() += "=" + text;
    else
      (formula ? formulas : options).push_back(text);
  }
  if (!formulas.empty()) options.push_back("--");
  options.insert(options.end(), formulas.begin(), formulas.end());
  return {options.rbegin(), options.rend()};  // CLI11 wants them backwards
}

bool has_command(CLI::App& app, const std::string& name) {
  const auto commands = app.get_subcommands([](CLI::App*) { return true; });
  return std::any_of(commands.begin(), commands.end(),
                     [&](CLI::App* command) { return command->get_name() == name; });
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "Programmable attention for CPUs: look at formulas and masks, run them, measure this "
      "machine.",
      "quire"};
  app.set_version_flag("--version", QUIRE_VERSION);
  app.require_subcommand(1);
  app.footer(
      "A rule is a formula over score, b, h, q_idx and kv_idx. Begin with:\n"
      "  quire demo                                             a tour\n"
      "  quire draw \"(q_idx >= kv_idx) & (q_idx - kv_idx < 16)\"  what a mask looks like\n"
      "  quire explain \"score + slopes[h] * (kv_idx - q_idx)\"   what becomes of a formula\n"
      "  quire attend q.npy k.npy v.npy --causal -o out.npy     attention over files\n"
      "quire COMMAND --help has more examples. QUIRE_NUM_THREADS and QUIRE_ISA choose threads and\n"
      "instructions; NO_COLOR switches colours off.\n"
      "Exit codes: 0 done, 1 the formula, a file or the machine is at fault, 2 the command line "
      "is.");
  quire::cli::add_info(app);
  quire::cli::add_draw(app);
  quire::cli::add_explain(app);
  quire::cli::add_bench(app);
  quire::cli::add_attend(app);
  quire::cli::add_demo(app);
  if (argc > 1 && argv[1][0] != '-' && !has_command(app, argv[1])) {
    std::fprintf(stderr, "quire: there is no command '%s'; try quire --help\n", argv[1]);
    return 2;
  }
  try {
    app.parse(arguments(argc, argv));
  } catch (const CLI::Success& asked) {  // --help, --version
    return app.exit(asked);
  } catch (const CLI::ParseError& wrong) {
    app.exit(wrong);
    return 2;
  } catch (const std::exception& error) {  // quire::Error, or no memory
    std::fflush(stdout);
    std::fprintf(stderr, "quire: %s\n", error.what());
    return 1;
  }
  return 0;
}
