// Colours and progress bars.
#include "terminal.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace quire::cli {
namespace {

bool is_dumb() {
  const char* terminal = std::getenv("TERM");
  return terminal != nullptr && std::string_view(terminal) == "dumb";
}

}  // namespace

bool wants_colour() {
  const char* refused = std::getenv("NO_COLOR");
  return isatty(STDOUT_FILENO) != 0 && (refused == nullptr || *refused == '\0') && !is_dumb();
}

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
  std::fflush(stdout);
  fmt::print(stderr, "\r\x1b[K{} {:3.0f} % {}", bar(share, 30), 100 * share, what.substr(0, 40));
  std::fflush(stderr);
}

void Progress::wipe() const {
  if (!shown_) return;
  fmt::print(stderr, "\r\x1b[K");
  std::fflush(stderr);
}

}  // namespace quire::cli
