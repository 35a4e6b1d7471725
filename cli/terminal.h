// What a terminal is told and a file is not: colours, and how far long work has come.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace quire::cli {

/// Whether stdout is a terminal that takes colours, and NO_COLOR is not set.
bool wants_colour();

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
