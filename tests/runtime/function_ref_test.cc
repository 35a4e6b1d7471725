// FunctionRef calls lambdas, const callables and plain functions, forwards by reference, and is two
// words.
#include "quire/function_ref.h"

#include <gtest/gtest.h>

#include <memory>
#include <utility>

namespace quire {
namespace {

int twice(int x) { return 2 * x; }
int apply(FunctionRef<int(int)> f, int x) { return f(x); }

TEST(FunctionRef, CallsLambdasAndFunctions) {
  int calls = 0;
  EXPECT_EQ(apply([&](int x) { return ++calls, x + 1; }, 3), 4);
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(apply(twice, 3), 6);
  EXPECT_EQ(apply(&twice, 3), 6);
  const auto constant = [](int) { return 7; };
  EXPECT_EQ(apply(constant, 0), 7);
}

TEST(FunctionRef, RefersAndDoesNotCopy) {
  struct Counter {
    int value = 0;
    int operator()(int step) { return value += step; }
  } counter;
  FunctionRef<int(int)> ref = counter;
  FunctionRef<int(int)> copy = ref;
  ref(2);
  copy(3);
  EXPECT_EQ(counter.value, 5);
}

TEST(FunctionRef, ForwardsMoveOnlyAndReferences) {
  const auto take = [](std::unique_ptr<int> p, int& out) { out = *p; };
  FunctionRef<void(std::unique_ptr<int>, int&)> ref = take;
  int out = 0;
  ref(std::make_unique<int>(9), out);
  EXPECT_EQ(out, 9);
}

TEST(FunctionRef, IsTwoWordsAndTrivial) {
  using Ref = FunctionRef<void()>;
  static_assert(sizeof(Ref) == 2 * sizeof(void*));
  static_assert(std::is_trivially_copyable_v<Ref>);
  static_assert(!std::is_convertible_v<int, Ref>);
}

}  // namespace
}  // namespace quire
