// The vector functions of math/ over arrays, as plain pointers with the error each promises: what
// tests see of them. No SIMD. Kernels layer.
#pragma once
#include <cstddef>
#include <cstdint>

namespace quire::kernels {

struct MathTable {
  // out[i] = f(in[i]) for i < n; in may equal out.
  struct Entry {
    const char* name;
    void (*apply)(const float* in, float* out, size_t n) noexcept;
    double max_ulps;  // against the exact value, in units of the last place of a float of that size
    float lo, hi;     // for lo <= in[i] <= hi and NaN; the function is not defined elsewhere
  };
  // out[i] = f(a[i], b[i]) for i < n; a or b may equal out.
  struct BinaryEntry {
    const char* name;
    void (*apply)(const float* a, const float* b, float* out, size_t n) noexcept;
    double max_ulps;
  };

  // Philox4x32-10: counters and their words [n][4].
  void (*philox)(const uint32_t* counters, const uint32_t* key, uint32_t* words, size_t n) noexcept;

  const Entry* unary;
  size_t unary_count;
  const BinaryEntry* binary;
  size_t binary_count;
};

}  // namespace quire::kernels
