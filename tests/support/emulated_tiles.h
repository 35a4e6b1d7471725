// The eight tile registers of AMX in software: what each instruction does by Intel's manual, on the
// configuration it finds. Tests compare it with the hardware where there is any; amx_trap.h puts it
// in place of hardware where there is none. Tests only.
#pragma once
#include <cstddef>
#include <cstdint>

namespace quire::testing {

/// The 64 bytes of ldtilecfg.
struct alignas(64) EmulatedConfig {
  std::uint8_t palette = 0, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {};
  std::uint8_t rows[16] = {};
};

/// Functions return false where the CPU would not execute them: no configuration, or shapes that do
/// not fit each other.
class EmulatedTiles {
 public:
  EmulatedConfig config;

  /// Tiles become 0. Palette 0 is a release.
  bool configure(const EmulatedConfig& to);
  bool zero(int tile);
  bool load(int tile, const char* from, std::ptrdiff_t step);
  bool store(int tile, char* to, std::ptrdiff_t step) const;
  /// tdpbf16ps: sum += a x b. By the CPU's fused multiply-adds, subnormals as 0.
  bool multiply_bf16(int sum, int a, int b);
  /// tdpbssd: sum += a x b of signed bytes, four to an element; sums wrap.
  bool multiply_bytes(int sum, int a, int b);

 private:
  bool fit(int sum, int a, int b) const;
  bool exists(int tile) const;

  alignas(64) char data_[8][16][64] = {};
};

}  // namespace quire::testing
