// FloatEnv: while it lives, the calling thread computes in the default floating-point environment
// (round to nearest, no flush of subnormals to zero, no traps); afterwards the caller's is back,
// its exception flags included. Kernels promise bits, and a caller may have set FTZ/DAZ
// (-ffast-math does at start-up) or another rounding mode. One per task: it costs two register
// moves. Uses compiler builtins and not the vector intrinsics, so it may live here. Runtime layer.
#pragma once
#include <cstdint>

#if !defined(__x86_64__) && !defined(__aarch64__)
#include <cfenv>
#endif

namespace quire {

class FloatEnv {
 public:
#if defined(__x86_64__)
  FloatEnv() noexcept : saved_(__builtin_ia32_stmxcsr()) { __builtin_ia32_ldmxcsr(kDefault); }
  ~FloatEnv() { __builtin_ia32_ldmxcsr(saved_); }
#elif defined(__aarch64__)
  FloatEnv() noexcept {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("mrs %0, fpsr" : "=r"(saved_flags_));
    asm volatile("msr fpcr, %0" : : "r"(uint64_t{0}));
  }
  ~FloatEnv() {
    asm volatile("msr fpsr, %0" : : "r"(saved_flags_));
    asm volatile("msr fpcr, %0" : : "r"(saved_));
  }
#else
  FloatEnv() noexcept {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~FloatEnv() { std::fesetenv(&saved_); }
#endif
  FloatEnv(const FloatEnv&) = delete;
  FloatEnv& operator=(const FloatEnv&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr uint32_t kDefault = 0x1f80;  // MXCSR at start-up: all exceptions masked
  uint32_t saved_;
#elif defined(__aarch64__)
  uint64_t saved_;
  uint64_t saved_flags_;
#else
  std::fenv_t saved_;
#endif
};

}  // namespace quire
