// The program `quire`: subcommands, exit codes, errors on stderr. Subcommands are in their own
// files. Command line layer.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <iostream>
#include <numeric>
#include <string>
#include <vector>

#include "commands.h"
#include "quire/version.h"

namespace {

// Options whose value may be a formula: "--score -score" means "--score=-score".
bool takes_formula(const std::string& option, const std::string& command) {
  return option == "--score" || (option == "--mask" && command == "attend");
}

// A formula may begin with a minus: "-score" is not an option. It is moved after `--`, where CLI11
// expects no options, or joined with the option it follows.
std::vector<std::string> arguments(const std::vector<std::string>& words) {
  std::vector<std::string> options, formulas;
  bool separated = false;  // the user said where options end
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& text = words[i];
    separated |= text == "--";
    const bool minus = !separated && text.size() > 1 && text[0] == '-' && text[1] != '-';
    const bool is_value = minus && i > 0 && takes_formula(words[i - 1], words[0]);
    const bool formula = minus && text.size() > 2 && !text.starts_with("-o");
    if (is_value)
      options.back() += "=" + text;
    else
      (formula ? formulas : options).push_back(text);
  }
  if (!formulas.empty()) options.push_back("--");
  options.insert(options.end(), formulas.begin(), formulas.end());
  return {options.rbegin(), options.rend()};  // CLI11 wants them in reverse
}

std::vector<std::string> commands_of(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(command->get_name());
  return names;
}

// Edit distance: letters to change, remove or add to turn one word into the other.
std::size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0]++;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t changed = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

int refuse_command(const std::string& name, const std::vector<std::string>& commands) {
  const auto nearest = std::ranges::min_element(
      commands, {}, [&](const std::string& command) { return distance(name, command); });
  const bool is_near = distance(name, *nearest) <= 2;
  std::fprintf(stderr, "quire: there is no command '%s'; %s%s%s\n", name.c_str(),
               is_near ? "did you mean '" : "", is_near ? nearest->c_str() : "try quire --help",
               is_near ? "'?" : "");
  return 2;
}

// What was printed may not have been written yet: to a full disk, for instance.
int finish(int code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.flush()) return code;
  std::fprintf(stderr, "quire: cannot write to stdout\n");
  return 1;
}

int parse_and_run(CLI::App& app, const std::vector<std::string>& words) {
  const std::string command = words.empty() ? "" : " " + words.front();
  try {
    app.parse(arguments(words));
  } catch (const CLI::Success& asked) {  // --help, --version
    return finish(app.exit(asked));
  } catch (const CLI::ParseError& wrong) {
    const bool of_command = !command.empty() && command[1] != '-';
    std::fprintf(stderr, "quire%s: %s; try quire%s --help\n", of_command ? command.c_str() : "",
                 wrong.what(), of_command ? command.c_str() : "");
    return 2;
  }
  return finish(0);
}

int run(int argc, char** argv) {
  CLI::App app{
      "Programmable attention for CPUs: look at formulas and masks, run them, measure this "
      "machine.",
      "quire"};
  app.set_version_flag("--version", quire::version());
  app.require_subcommand(1);
  app.footer(
      "A rule is a formula over score, b, h, q_idx and kv_idx. Begin with:\n"
      "  quire demo                                              a tour\n"
      "  quire draw \"(q_idx >= kv_idx) & (q_idx - kv_idx < 16)\"  what a mask looks like\n"
      "  quire explain \"score + slopes[h] * (kv_idx - q_idx)\"    what becomes of a formula\n"
      "  quire attend q.npy k.npy v.npy --causal -o out.npy      attention over files\n"
      "quire COMMAND --help has the options, and more examples. QUIRE_NUM_THREADS and QUIRE_ISA\n"
      "choose threads and instructions; NO_COLOR switches colours off.\n"
      "Exit codes: 0 done, 1 the formula, a file or the machine is at fault, 2 the command line "
      "is.");
  app.get_formatter()->column_width(26);
  quire::cli::add_info(app);
  quire::cli::add_draw(app);
  quire::cli::add_explain(app);
  quire::cli::add_bench(app);
  quire::cli::add_attend(app);
  quire::cli::add_demo(app);
  quire::cli::add_play(app);
  std::vector<std::string> words(argv + 1, argv + argc);
  if (words.empty()) {
    std::fprintf(stderr, "%s", app.help().c_str());
    return 2;
  }
  if (words.front() == "help") {  // quire help draw: quire draw --help
    words.erase(words.begin());
    words.resize(std::min<std::size_t>(words.size(), 1));
    words.push_back("--help");
  }
  const std::vector<std::string> commands = commands_of(app);
  if (words.front()[0] != '-' && std::ranges::count(commands, words.front()) == 0)
    return refuse_command(words.front(), commands);
  return parse_and_run(app, words);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {  // quire::Error, or no memory
    std::fflush(stdout);
    std::fprintf(stderr, "quire: %s\n", error.what());
    return 1;
  }
}
