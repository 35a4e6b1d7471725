// The program `quire`: subcommands, exit codes, errors on stderr. What a subcommand prints is in
// its own file.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "commands.h"
#include "quire/error.h"

namespace {

// A formula may begin with a minus: "-score" is no option. It goes behind `--`, where CLI11 takes
// no options.
std::vector<std::string> arguments(int argc, char** argv) {
  std::vector<std::string> options, formulas;
  bool separated = false;  // the user said where options end
  for (int i = 1; i < argc; ++i) {
    const std::string text = argv[i];
    separated |= text == "--";
    const bool formula = !separated && text.size() > 2 && text[0] == '-' && text[1] != '-';
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
  CLI::App app{"Programmable attention for CPUs: look at formulas, masks and this machine.",
               "quire"};
  app.set_version_flag("--version", QUIRE_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 done, 1 the formula or the machine is at fault, 2 the command line is.");
  quire::cli::add_info(app);
  quire::cli::add_explain(app);
  quire::cli::add_draw(app);
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
  } catch (const quire::Error& error) {
    std::fprintf(stderr, "quire: %s\n", error.what());
    return 1;
  }
  return 0;
}
