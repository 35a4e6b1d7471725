// What is fuzzed: functions that take any bytes, call what reads them, and throw std::logic_error
// if a promise of the library is broken. quire::Error is an answer, everything else a find. Driven
// by libFuzzer (fuzz/entry.cc) and, over the seeds in fuzz/corpus/, by tests/fuzz/replay_test.cc.
#pragma once
#include <cstdint>
#include <span>
#include <stdexcept>

namespace quire::fuzz {

using Bytes = std::span<const std::uint8_t>;

void formula_parser(Bytes bytes);
void kv_blocks(Bytes bytes);
void mask_words(Bytes bytes);
void jagged_offsets(Bytes bytes);
void npy_reader(Bytes bytes);
void kv_cache_state(Bytes bytes);

struct Target {
  const char* name;  // of its function, and of its folder in fuzz/corpus/
  void (*run)(Bytes bytes);
};
inline constexpr Target kTargets[] = {
    {"formula_parser", formula_parser}, {"kv_blocks", kv_blocks},
    {"mask_words", mask_words},         {"jagged_offsets", jagged_offsets},
    {"npy_reader", npy_reader},         {"kv_cache_state", kv_cache_state}};

inline void check(bool kept, const char* promise) {
  if (!kept) throw std::logic_error(promise);
}

/// Numbers out of bytes, 0 when there are no more.
class Input {
 public:
  explicit Input(Bytes bytes) : bytes_(bytes) {}

  std::int64_t byte() {
    if (bytes_.empty()) return 0;
    const std::uint8_t value = bytes_.front();
    bytes_ = bytes_.subspan(1);
    return value;
  }
  /// 0 .. below - 1.
  std::int64_t below(std::int64_t limit) { return byte() % limit; }
  /// Mostly small ones of either sign; now and then one of the extremes.
  std::int64_t number() {
    const std::int64_t value = byte();
    if (value < 240) return value % 80 - 8;
    std::uint64_t wide = 0;
    for (int i = 0; i < 8; ++i) wide = wide << 8 | static_cast<std::uint64_t>(byte());
    return static_cast<std::int64_t>(wide);
  }

 private:
  Bytes bytes_;
};

}  // namespace quire::fuzz
