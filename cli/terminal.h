// What a terminal is told and a file is not: colours, its width, and how far long work has come.
// Command line layer.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <string_view>

namespace quire::cli {

/// Adds --color auto|always|never, which counts more than the environment.
void add_colour_option(CLI::App& command);

/// Whether stdout gets colours. NO_COLOR: no; else CLICOLOR_FORCE: yes; else where stdout is a
/// terminal that takes them, unless CLICOLOR is 0.
bool wants_colour();

/// Whether the locale names a character set other than UTF-8, as in LANG=de_DE.ISO-8859-1. A locale
/// that names none ("C") says nothing: most terminals read UTF-8 all the same.
bool wants_ascii();

/// Columns of the terminal that stdout is; `otherwise` where it is none or does not say.
int terminal_columns(int otherwise);

/// A heading, coloured where wanted: "== text" after an empty line.
std::string heading(std::string_view text);

/// A bar on stderr, if that is a terminal; nothing otherwise. It is wiped when its owner ends, so
/// that what stays is the result.
class Progress {
 public:
  explicit Progress(std::int64_t steps);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  bool is_shown() const { return shown_; }
  /// `done` of the steps are over; `what` is the next.
  void show(std::int64_t done, std::string_view what = {}) const;
  /// Takes the bar away until the next show(), so that something can be printed.
  void wipe() const;

 private:
  std::int64_t steps_;
  bool shown_;
};

/// "[#####.....]": `share` of the width is full.
std::string bar(double share, int width);

}  // namespace quire::cli
