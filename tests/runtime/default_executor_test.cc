// The process-wide executor: its number of threads, changing it during runs, and that idle threads
// sleep.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "quire/executor.h"
#include "runtime/thread_count.h"
#include "tests/support/expect_error.h"

namespace quire {
namespace {

class DefaultExecutorTest : public ::testing::Test {
 protected:
  void TearDown() override { set_num_threads(before_); }
  int before_ = get_num_threads();
};

TEST_F(DefaultExecutorTest, FollowsSetNumThreads) {
  for (const int n : {1, 3, 2}) {
    set_num_threads(n);
    EXPECT_EQ(get_num_threads(), n);
    EXPECT_EQ(default_executor()->concurrency(), static_cast<size_t>(n));
  }
}

TEST_F(DefaultExecutorTest, RefusesBadCountsAndKeepsTheOld) {
  set_num_threads(2);
  for (const int n : {0, -4, 1025, std::numeric_limits<int>::min()}) {
    testing::expect_error(ErrorKind::value,
                          "[set_num_threads] n must be in 1..1024; got " + std::to_string(n),
                          [n] { set_num_threads(n); });
  }
  EXPECT_EQ(get_num_threads(), 2);
}

TEST_F(DefaultExecutorTest, ChangesWhileRunsGoOn) {
  std::atomic<bool> stop{false};
  std::jthread changer([&] {
    for (int n = 1; !stop; n = n % 4 + 1) set_num_threads(n);
  });
  for (int repeat = 0; repeat < 200; ++repeat) {
    std::atomic<int> count{0};
    default_executor()->run(64, [&](size_t, size_t) { ++count; });
    ASSERT_EQ(count, 64);
  }
  stop = true;
}

TEST_F(DefaultExecutorTest, ChangesFromInsideABody) {
  set_num_threads(2);
  const auto held = default_executor();
  std::atomic<int> count{0};
  held->run(8, [&](size_t index, size_t) {
    if (index == 3) set_num_threads(3);
    ++count;
  });
  EXPECT_EQ(count, 8);
  EXPECT_EQ(get_num_threads(), 3);
}

TEST_F(DefaultExecutorTest, IdleThreadsSleep) {
  set_num_threads(4);
  std::atomic<int64_t> sink{0};
  default_executor()->run(256, [&](size_t index, size_t) { sink += static_cast<int64_t>(index); });
  const std::clock_t begin = std::clock();  // CPU time of the whole process
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  const double busy_ms = 1e3 * static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  EXPECT_LT(busy_ms, 30) << "of 200 ms; threads spin while there is nothing to do";
}

TEST(ThreadCount, ComesFromTheEnvironmentOrTheCpus) {
  EXPECT_EQ(choose_num_threads(nullptr, 6), 6);
  EXPECT_EQ(choose_num_threads("", 6), 6);
  EXPECT_EQ(choose_num_threads("3", 6), 3);
  EXPECT_EQ(choose_num_threads("1024", 6), 1024);
  EXPECT_EQ(choose_num_threads(nullptr, 5000), 1024);
  EXPECT_EQ(choose_num_threads(nullptr, 0), 1);
}

TEST(ThreadCount, RefusesBadEnvironment) {
  for (const char* text : {"0", "-2", "four", "2x", " 2", "1025", "99999999999999999999", "1.5"}) {
    testing::expect_error(
        ErrorKind::value,
        "[QUIRE_NUM_THREADS] must be a whole number in 1..1024; got '" + std::string(text) + "'",
        [text] { choose_num_threads(text, 2); });
  }
}

TEST(ThreadCount, SomeCpuIsAvailable) {
  EXPECT_GE(available_cpus(), 1);
  EXPECT_LE(available_cpus(), static_cast<int>(std::max(1u, std::thread::hardware_concurrency())));
}

}  // namespace
}  // namespace quire
