// What every Executor promises: each index once, ascending claims, unique workers, the lowest
// exception, nesting, use from several threads. The same tests run for the serial executor and for
// a pool and OpenMP with 1, 2 and 7 threads each.
#include "quire/executor.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/expect_error.h"

namespace quire {
namespace {

using std::chrono_literals::operator""us;

// The compiler's own runtime; nothing here is compiled with -fopenmp. Null if there is none. Not
// under ThreadSanitizer, which does not see how libgomp orders memory.
OpenMpRuntime openmp_runtime() {
#if !defined(__SANITIZE_THREAD__)
  static void* const library = dlopen("libgomp.so.1", RTLD_NOW);
  if (library != nullptr) {
    return {reinterpret_cast<decltype(OpenMpRuntime::parallel)>(dlsym(library, "GOMP_parallel")),
            reinterpret_cast<decltype(OpenMpRuntime::thread_number)>(
                dlsym(library, "omp_get_thread_num"))};
  }
#endif
  return {};
}

// 0 stands for SerialExecutor, -n for n threads of OpenMP.
std::shared_ptr<Executor> executor_of(int kind) {
  if (kind == 0) return std::make_shared<SerialExecutor>();
  if (kind > 0) return make_thread_pool(kind);
  return openmp_runtime().parallel == nullptr ? nullptr
                                              : make_openmp_executor(openmp_runtime(), -kind);
}

class ExecutorTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (executor_ == nullptr) GTEST_SKIP() << "no OpenMP runtime here";
  }
  std::shared_ptr<Executor> executor_ = executor_of(GetParam());
};

TEST_P(ExecutorTest, RunsEveryIndexOnce) {
  for (const size_t n : {0, 1, 2, 3, 7, 64, 1000, 20011}) {
    std::vector<std::atomic<int>> counts(n);
    executor_->run(n, [&](size_t index, size_t) { ++counts[index]; });
    EXPECT_TRUE(std::all_of(counts.begin(), counts.end(), [](const auto& c) { return c == 1; }))
        << n;
  }
}

TEST_P(ExecutorTest, WorkersAreUniqueAndInRange) {
  std::vector<std::atomic<int>> busy(executor_->concurrency());
  std::atomic<int> clashes{0};
  executor_->run(500, [&](size_t, size_t worker) {
    ASSERT_LT(worker, busy.size());
    clashes += busy[worker]++ != 0;
    std::this_thread::sleep_for(20us);
    --busy[worker];
  });
  EXPECT_EQ(clashes, 0);
}

// When an index begins, all lower ones have been claimed: at most `concurrency` indices are open at
// once, so the number of those finished is at least index - (concurrency - 1).
TEST_P(ExecutorTest, ClaimsAscend) {
  const auto concurrency = static_cast<int64_t>(executor_->concurrency());
  std::atomic<int64_t> finished{0};
  std::atomic<int> early{0};
  executor_->run(2000, [&](size_t index, size_t) {
    early += finished.load() < static_cast<int64_t>(index) - (concurrency - 1);
    ++finished;
  });
  EXPECT_EQ(early, 0);
}

TEST_P(ExecutorTest, LowestExceptionReachesTheCaller) {
  for (int repeat = 0; repeat < 50; ++repeat) {
    std::atomic<size_t> highest{0};
    try {
      executor_->run(100000, [&](size_t index, size_t) {
        size_t seen = highest.load();
        while (seen < index && !highest.compare_exchange_weak(seen, index)) {
        }
        if (index == 13) std::this_thread::sleep_for(200us);  // later ones throw first
        if (index >= 13) throw std::runtime_error(std::to_string(index));
      });
      FAIL() << "no exception";
    } catch (const std::runtime_error& error) {
      EXPECT_STREQ(error.what(), "13");
    }
    // 13 was claimed before any other that throws, and each worker claims at most one that throws.
    EXPECT_LT(highest.load(), 13 + executor_->concurrency());
  }
}

TEST_P(ExecutorTest, IsUsableAfterAnException) {
  EXPECT_THROW(executor_->run(10, [](size_t, size_t) { throw std::logic_error("x"); }),
               std::logic_error);
  std::atomic<int> count{0};
  executor_->run(100, [&](size_t, size_t) { ++count; });
  EXPECT_EQ(count, 100);
}

TEST_P(ExecutorTest, NestedRunsFinish) {
  std::atomic<int> count{0};
  executor_->run(20, [&](size_t, size_t) {
    executor_->run(30, [&](size_t, size_t inner_worker) {
      ASSERT_LT(inner_worker, executor_->concurrency());
      executor_->run(2, [&](size_t, size_t) { ++count; });
    });
  });
  EXPECT_EQ(count, 20 * 30 * 2);
}

TEST_P(ExecutorTest, NestedExceptionPassesThrough) {
  EXPECT_THROW(executor_->run(8,
                              [&](size_t, size_t) {
                                executor_->run(8, [](size_t inner, size_t) {
                                  if (inner == 5) throw std::out_of_range("inner");
                                });
                              }),
               std::out_of_range);
}

TEST_P(ExecutorTest, SeveralThreadsRunAtOnce) {
  std::atomic<int> count{0};
  std::vector<std::jthread> users;
  for (int user = 0; user < 4; ++user) {
    users.emplace_back([&] {
      for (int repeat = 0; repeat < 20; ++repeat) {
        std::vector<std::atomic<int>> busy(executor_->concurrency());
        executor_->run(50, [&](size_t, size_t worker) {
          EXPECT_EQ(busy[worker]++, 0);
          ++count;
          --busy[worker];
        });
      }
    });
  }
  users.clear();
  EXPECT_EQ(count, 4 * 20 * 50);
}

INSTANTIATE_TEST_SUITE_P(Kinds, ExecutorTest, ::testing::Values(0, 1, 2, 7, -1, -2, -7),
                         [](const auto& info) {
                           if (info.param == 0) return std::string("serial");
                           return (info.param > 0 ? "pool" : "openmp") +
                                  std::to_string(std::abs(info.param));
                         });

TEST(SerialExecutor, KeepsOrderAndThread) {
  SerialExecutor executor;
  std::vector<size_t> order;
  const auto caller = std::this_thread::get_id();
  executor.run(5, [&](size_t index, size_t worker) {
    order.push_back(index);
    EXPECT_EQ(worker, 0u);
    EXPECT_EQ(std::this_thread::get_id(), caller);
  });
  EXPECT_EQ(order, (std::vector<size_t>{0, 1, 2, 3, 4}));
}

// More threads than CPUs are real threads: results must be testable with 7 threads on a machine
// of 2.
TEST(ThreadPool, GivesAsManyThreadsAsAsked) {
  const auto executor = make_thread_pool(7);
  std::atomic<int> arrived{0};
  std::atomic<int> most{0};
  executor->run(7, [&](size_t, size_t) {
    ++arrived;
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (arrived < 7 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
    most = std::max(most.load(), arrived.load());
  });
  EXPECT_EQ(most, 7);
}

TEST(ThreadPool, RefusesBadCounts) {
  for (const int n : {0, -1, 1025}) {
    testing::expect_error(ErrorKind::value,
                          "[make_thread_pool] n must be in 1..1024; got " + std::to_string(n),
                          [n] { make_thread_pool(n); });
  }
}

TEST(OpenMpExecutor, RefusesBadCountsAndNoRuntime) {
  const OpenMpRuntime runtime{[](void (*)(void*), void*, unsigned, unsigned) {}, [] { return 0; }};
  for (const int n : {0, -1, 1025}) {
    testing::expect_error(ErrorKind::value,
                          "[make_openmp_executor] n must be in 1..1024; got " + std::to_string(n),
                          [&] { make_openmp_executor(runtime, n); });
  }
  testing::expect_error(ErrorKind::value,
                        "[make_openmp_executor] both functions of the runtime are needed",
                        [] { make_openmp_executor({}, 2); });
}

// A body that leaves work of another executor behind must not meet it again while waiting:
// isolation.
TEST(ThreadPool, TwoExecutorsNest) {
  const auto outer = make_thread_pool(3);
  const auto inner = make_thread_pool(2);
  std::atomic<int> count{0};
  outer->run(10, [&](size_t, size_t) { inner->run(10, [&](size_t, size_t) { ++count; }); });
  EXPECT_EQ(count, 100);
}

}  // namespace
}  // namespace quire
