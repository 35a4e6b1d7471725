// MemoryAhead: prefetches what the next item will read and write, in small parts while this one is
// computed. In one burst, the core would wait for memory and then memory for the core. Changes no
// result. Kernels layer.
#pragma once
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

  /// Lines of 64 bytes that have not been prefetched.
  std::int64_t lines() const noexcept { return lines_; }

  /// Prefetches the next lines into L2.
  void ask(std::int64_t lines) noexcept {
    for (; lines > 0 && at_ < count_; --lines, --lines_) {
      const Rows& rows = list_[at_];
      const char* const line = rows.at + row_ * rows.step + line_ * 64;
      if (rows.is_written)
        __builtin_prefetch(line, 1, 2);
      else
        __builtin_prefetch(line, 0, 2);
      if (++line_ < lines_of(rows)) continue;
      line_ = 0;
      if (++row_ < rows.rows) continue;
      row_ = 0;
      ++at_;
    }
  }

 private:
  static std::int64_t lines_of(const Rows& rows) { return (rows.bytes + 63) / 64; }

  Rows list_[4];  // queries, keys, values and outputs; the first count_ are set
  int count_ = 0, at_ = 0;
  std::int64_t row_ = 0, line_ = 0;  // of list_[at_], the next
  std::int64_t lines_ = 0;
};

}  // namespace quire::kernels
