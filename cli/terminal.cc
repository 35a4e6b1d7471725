// Colours, widths and progress bars. Command line layer.
#include "terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace quire::cli {
namespace {

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

bool is_dumb() { return variable("TERM") == "dumb"; }

int columns_of(int file, int otherwise) {
  winsize size{};
  return ioctl(file, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : otherwise;
}

}  // namespace

void add_colour_option(CLI::App& command) {
  command
      .add_option_function<std::string>(
          "--color",
          [](const std::string& when) {
            unsetenv("NO_COLOR");
            unsetenv("CLICOLOR_FORCE");
            if (when == "always") setenv("CLICOLOR_FORCE", "1", 1);
            if (when == "never") setenv("NO_COLOR", "1", 1);
          },
          "auto: on a terminal; always; never")
      ->type_name("WHEN")
      ->check(CLI::IsMember({"auto", "always", "never"}).description(""));
}

bool wants_colour() {
  if (!variable("NO_COLOR").empty()) return false;
  const std::string_view forced = variable("CLICOLOR_FORCE");
  if (!forced.empty() && forced != "0") return true;
  return isatty(STDOUT_FILENO) != 0 && !is_dumb() && variable("CLICOLOR") != "0";
}

bool wants_ascii() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const std::string_view locale = variable(name);
    if (locale.empty()) continue;
    const std::size_t dot = locale.find('.');
    if (dot == std::string_view::npos) return false;
    std::string charset;
    for (const char c : locale.substr(dot + 1, locale.find('@', dot) - dot - 1))
      if (c != '-') charset += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return charset != "utf8";
  }
  return false;
}

int terminal_columns(int otherwise) { return columns_of(STDOUT_FILENO, otherwise); }

std::string heading(std::string_view text) {
  return wants_colour() ? fmt::format("\n\x1b[1;36m== {}\x1b[0m\n", text)
                        : fmt::format("\n== {}\n", text);
}

std::string bar(double share, int width) {
  const int full = static_cast<int>(std::lround(std::clamp(share, 0.0, 1.0) * width));
  return fmt::format("[{:#<{}}{:.<{}}]", "", full, "", width - full);
}

Progress::Progress(std::int64_t steps)
    : steps_(std::max<std::int64_t>(steps, 1)), shown_(isatty(STDERR_FILENO) != 0 && !is_dumb()) {}

Progress::~Progress() { wipe(); }

void Progress::show(std::int64_t done, std::string_view what) const {
  if (!shown_) return;
  const double share = static_cast<double>(done) / static_cast<double>(steps_);
  // A line that is too long would wrap, and \r would not return to its beginning.
  const int columns = columns_of(STDERR_FILENO, 80);
  const int width = std::clamp(columns - 50, 5, 30);
  const std::size_t room = std::clamp(columns - width - 10, 0, 40);
  std::fflush(stdout);
  fmt::print(stderr, "\r\x1b[K{} {:3.0f} % {}", bar(share, width), 100 * share,
             what.substr(0, room));
  std::fflush(stderr);
}

void Progress::wipe() const {
  if (!shown_) return;
  fmt::print(stderr, "\r\x1b[K");
  std::fflush(stderr);
}

}  // namespace quire::cli
