// FloatEnv gives subnormals and round-to-nearest back to a thread that had switched them off, and
// restores the thread.
#include "runtime/float_env.h"

#include <gtest/gtest.h>

#include <cfenv>
#include <limits>

namespace quire {
namespace {

// volatile: the compiler must not compute it under the default environment of its own.
float halved(float value) {
  volatile float x = value;
  volatile float half = 0.5f;
  return x * half;
}
float third() {
  volatile float one = 1.0f;
  volatile float three = 3.0f;
  volatile float result = one / three;  // divided even where nobody looks at the result
  return result;
}

TEST(FloatEnv, RoundingModeIsNearestInside) {
  const float nearest = third();
  std::fesetround(FE_DOWNWARD);
  const float down = third();
  {
    const FloatEnv env;
    EXPECT_EQ(third(), nearest);
  }
  EXPECT_EQ(third(), down);
  EXPECT_EQ(std::fegetround(), FE_DOWNWARD);
  std::fesetround(FE_TONEAREST);
  EXPECT_NE(nearest, down);
}

#if defined(__x86_64__) || defined(__aarch64__)
#if defined(__x86_64__)
constexpr uint64_t kFlushBits = 0x8040;  // FTZ and DAZ
uint64_t control() { return __builtin_ia32_stmxcsr(); }
void set_control(uint64_t bits) { __builtin_ia32_ldmxcsr(static_cast<uint32_t>(bits)); }
#else
constexpr uint64_t kFlushBits = 1u << 24;  // FPCR.FZ
uint64_t control() {
  uint64_t bits;
  asm volatile("mrs %0, fpcr" : "=r"(bits));
  return bits;
}
void set_control(uint64_t bits) { asm volatile("msr fpcr, %0" : : "r"(bits)); }
#endif

TEST(FloatEnv, SubnormalsSurviveInside) {
  const uint64_t before = control();
  const float smallest_normal = std::numeric_limits<float>::min();
  set_control(before | kFlushBits);
  const float flushed = halved(smallest_normal);
  float kept = 0;
  {
    const FloatEnv env;
    kept = halved(smallest_normal);
  }
  const uint64_t after = control();
  set_control(before);
  EXPECT_EQ(flushed, 0.0f);
  EXPECT_GT(kept, 0.0f);
  EXPECT_EQ(after & kFlushBits, kFlushBits);
}
#endif

TEST(FloatEnv, ExceptionFlagsOfTheCallerAreUntouched) {
  std::feclearexcept(FE_ALL_EXCEPT);
  {
    const FloatEnv env;
    third();
  }
  EXPECT_EQ(std::fetestexcept(FE_INEXACT), 0);
  third();
  EXPECT_NE(std::fetestexcept(FE_INEXACT), 0);
}

}  // namespace
}  // namespace quire
