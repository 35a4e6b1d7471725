// The program `quire`: subcommands, exit codes, errors on stderr. What a subcommand prints is in
// its own file.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "commands.h"
#include "quire/error.h"

int main(int argc, char** argv) {
  CLI::App app{"Programmable attention for CPUs: look at formulas and at this machine."};
  app.set_version_flag("--version", QUIRE_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Exit codes: 0 done, 1 the formula or the machine is at fault, 2 the command line is.");
  quire::cli::add_info(app);
  quire::cli::add_explain(app);
  try {
    app.parse(argc, argv);
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
