// What is shown in a terminal but not in a file: colours, the width, progress of long work. Command
// line layer.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <string_view>

namespace quire::cli {

/// Adds --color auto|always|never, which takes precedence over the environment.
void add_colour_option(CLI::App& command);

/// Whether stdout gets colours. NO_COLOR: no; otherwise CLICOLOR_FORCE: yes; otherwise if stdout is
/// a terminal with colours, unless CLICOLOR is 0.
bool wants_colour();

/// Whether the locale names a character set other than UTF-8, as in LANG=de_DE.ISO-8859-1. A locale
/// that names none ("C") says nothing: most terminals accept UTF-8 anyway.
bool wants_ascii();

/// Width of the terminal on stdout; `otherwise` if it is not a terminal or its width is unknown.
int terminal_columns(int otherwise);

/// A heading, coloured where wanted: "== text" after an empty line.
std::string heading(std::string_view text);

/// A progress bar on stderr, if that is a terminal; otherwise nothing. It is removed at the end, so
/// that only the result stays.
class Progress {
 public:
  explicit Progress(std::int64_t steps);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  bool is_shown() const { return shown_; }
  /// `done` steps are finished; `what` comes next.
  void show(std::int64_t done, std::string_view what = {}) const;
  /// Removes the bar until the next show(), so that something can be printed.
  void wipe() const;

 private:
  std::int64_t steps_;
  bool shown_;
};

/// "[#####.....]": `share` of the width is full.
std::string bar(double share, int width);

}  // namespace quire::cli
