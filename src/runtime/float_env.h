// FloatEnv: during its lifetime the calling thread computes in the default floating-point
// environment (round to nearest, subnormals kept, no traps); afterwards the caller's environment is
// restored, exception flags included, also if an exception is thrown. Results are promised to the
// bit, but a caller may have set FTZ/DAZ (-ffast-math does at start-up), another rounding mode or
// traps. There is one at every public entry point (tests/package/test_process.py searches the
// library for those without) and one around every body that an executor runs (run_parallel). It
// takes a few ns: registers are written only if they differ. Uses compiler builtins, no vector
// intrinsics, so it may live here. Runtime layer.
//
// Compilers do not know that arithmetic depends on these registers and may move it past them inside
// one function, so what computes between construction and destruction must be a call.
#pragma once
#include <cstdint>

#if !defined(__x86_64__) && !defined(__aarch64__)
#include <cfenv>
#endif

namespace quire {

#if defined(__x86_64__)
// Only MXCSR: nothing here computes in x87 registers (there is no long double).
class FloatEnv {
 public:
  [[gnu::always_inline]] FloatEnv() noexcept : saved_(__builtin_ia32_stmxcsr()) {
    if ((saved_ & ~kFlags) != kDefault) [[unlikely]]
      __builtin_ia32_ldmxcsr(kDefault);
  }
  [[gnu::always_inline]] ~FloatEnv() {
    if (__builtin_ia32_stmxcsr() != saved_) __builtin_ia32_ldmxcsr(saved_);
  }
  FloatEnv(const FloatEnv&) = delete;
  FloatEnv& operator=(const FloatEnv&) = delete;

 private:
  static constexpr std::uint32_t kDefault = 0x1f80;  // the state at start-up: all exceptions masked
  static constexpr std::uint32_t kFlags = 0x3f;      // exceptions raised so far
  std::uint32_t saved_;
};
#elif defined(__aarch64__)
class FloatEnv {
 public:
  [[gnu::always_inline]] FloatEnv() noexcept : saved_(control()), saved_flags_(flags()) {
    if (saved_ != 0) [[unlikely]] {
      asm volatile("msr fpcr, %0" : : "r"(std::uint64_t{0}) : "memory");
    }
  }
  [[gnu::always_inline]] ~FloatEnv() {
    if (flags() != saved_flags_) asm volatile("msr fpsr, %0" : : "r"(saved_flags_) : "memory");
    if (saved_ != 0) [[unlikely]] {
      asm volatile("msr fpcr, %0" : : "r"(saved_) : "memory");
    }
  }
  FloatEnv(const FloatEnv&) = delete;
  FloatEnv& operator=(const FloatEnv&) = delete;

 private:
  static std::uint64_t control() noexcept {
    std::uint64_t value;
    asm volatile("mrs %0, fpcr" : "=r"(value) : : "memory");
    return value;
  }
  static std::uint64_t flags() noexcept {
    std::uint64_t value;
    asm volatile("mrs %0, fpsr" : "=r"(value) : : "memory");
    return value;
  }
  std::uint64_t saved_;
  std::uint64_t saved_flags_;
};
#else
class FloatEnv {
 public:
  FloatEnv() noexcept {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~FloatEnv() { std::fesetenv(&saved_); }
  FloatEnv(const FloatEnv&) = delete;
  FloatEnv& operator=(const FloatEnv&) = delete;

 private:
  std::fenv_t saved_;
};
#endif

/// Calls function() in the default floating-point environment: for member initialisers.
template <class Function>
auto in_float_env(const Function& function) {
  const FloatEnv float_env;
  return function();
}

}  // namespace quire
