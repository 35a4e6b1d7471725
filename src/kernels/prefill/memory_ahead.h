// MemoryAhead: prefetches what will be read and written next, in small parts while something else
// is computed. In one burst, the core would wait for memory and then memory for the core. Changes
// no result. Kernels layer.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace quire::kernels {

class MemoryAhead {
 public:
  /// Rows of `bytes` bytes, `step` bytes apart; `is_written`: fetched to be owned by this core's
  /// cache.
  struct Rows {
    const char* at;
    std::ptrdiff_t step;
    std::int64_t rows, bytes;
    bool is_written;
  };

  void add(Rows rows) noexcept {
    if (rows.step == rows.bytes) {  // one long row
      rows.bytes *= rows.rows;
      rows.rows = 1;
    }
    if (rows.rows <= 0 || rows.bytes <= 0) return;
    list_[count_++] = rows;
    lines_ += rows.rows * lines_of(rows);
  }

  void clear() noexcept {
    count_ = at_ = 0;
    row_ = line_ = lines_ = 0;
  }
  bool is_full() const noexcept { return count_ == kMost; }

  /// Lines of 64 bytes that have not been prefetched.
  std::int64_t lines() const noexcept { return lines_; }

  /// Prefetches the next lines into L2. Best a few at a time: a core has some 24 on their way, and
  /// waits when it asks for more.
  void ask(std::int64_t lines) noexcept {
    while (lines > 0 && at_ < count_) {
      const Rows& rows = list_[at_];
      const std::int64_t of_row = lines_of(rows), some = std::min(lines, of_row - line_);
      const char* line = rows.at + row_ * rows.step + line_ * 64;
      const char* const end = line + some * 64;
      if (rows.is_written)
        for (; line != end; line += 64) __builtin_prefetch(line, 1, 2);
      else
        for (; line != end; line += 64) __builtin_prefetch(line, 0, 2);
      lines -= some;
      lines_ -= some;
      line_ += some;
      if (line_ < of_row) continue;
      line_ = 0;
      if (++row_ < rows.rows) continue;
      row_ = 0;
      ++at_;
    }
  }

 private:
  static constexpr int kMost = 8;

  static std::int64_t lines_of(const Rows& rows) { return (rows.bytes + 63) / 64; }

  Rows list_[kMost];  // queries, keys, values, outputs or spans of keys; the first count_ are set
  int count_ = 0, at_ = 0;
  std::int64_t row_ = 0, line_ = 0;  // of list_[at_], the next
  std::int64_t lines_ = 0;
};

}  // namespace quire::kernels
