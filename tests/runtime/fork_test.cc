// Pools and the default executor in a child of fork(): new threads, whatever the parent's were
// doing. tests/package/test_process.py does it with whole calls.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "quire/error.h"
#include "quire/executor.h"
#include "runtime/fork_count.h"

namespace quire {
namespace {

// The exit code of a child that does `work`; 14 is the number of SIGALRM: it hung.
template <class Work>
int in_child(const Work& work) {
  const pid_t pid = fork();
  if (pid == 0) {
    alarm(20);
    _exit(work());
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int sum_on(Executor& executor) {
  std::atomic<int> sum{0};
  executor.run(100, [&](std::size_t index, std::size_t) { sum += static_cast<int>(index); });
  return sum == 4950 ? 0 : 1;
}

#if !defined(__SANITIZE_THREAD__)  // it allows no threads in a child

TEST(Fork, IsCounted) {
  const std::uint64_t before = fork_count();
  EXPECT_EQ(in_child([&] { return fork_count() == before + 1 ? 0 : 1; }), 0);
  EXPECT_EQ(fork_count(), before);
}

TEST(Fork, APoolHasThreadsOfTheChild) {
  const auto pool = make_thread_pool(4);
  ASSERT_EQ(sum_on(*pool), 0);
  EXPECT_EQ(in_child([&] { return sum_on(*pool) + sum_on(*pool); }), 0);
  EXPECT_EQ(in_child([&] {
              // All four arrive: three of them are new.
              std::atomic<int> arrived{0};
              pool->run(4, [&](std::size_t, std::size_t) {
                ++arrived;
                while (arrived < 4) std::this_thread::yield();
              });
              return arrived == 4 ? 0 : 1;
            }),
            0);
  EXPECT_EQ(sum_on(*pool), 0);
}

// AddressSanitizer of g++ 12 does not release the locks of its own allocator in a child, so the
// first `new` there can wait for ever for a lock that one of the parent's threads held.
#if !defined(__SANITIZE_ADDRESS__)
TEST(Fork, WhileOtherThreadsRunAndChangeTheDefault) {
  const auto pool = make_thread_pool(3);
  std::atomic<bool> stop{false};
  std::jthread runs([&] {
    while (!stop) (void)sum_on(*pool);
  });
  std::jthread changes([&] {
    while (!stop) {
      set_num_threads(2);
      (void)sum_on(*default_executor());
    }
  });
  for (int i = 0; i < 30; ++i) {
    EXPECT_EQ(in_child([&] {
                set_num_threads(3);
                return sum_on(*pool) + sum_on(*default_executor());
              }),
              0);
  }
  stop = true;
}
#endif

TEST(Fork, InsideABodyIsAnErrorInTheChild) {
  const auto pool = make_thread_pool(2);
  const auto caller = std::this_thread::get_id();
  std::atomic<pid_t> child{-1};
  std::atomic<int> code{-1};
  try {
    pool->run(2, [&](std::size_t, std::size_t worker) {
      // Both are under way, so that the child's copy of the run has one worker too few.
      static std::atomic<int> arrived{0};
      ++arrived;
      while (arrived < 2) std::this_thread::yield();
      if (worker != 0 || std::this_thread::get_id() != caller) {
        while (child < 0) std::this_thread::yield();
        return;
      }
      const pid_t pid = fork();
      if (pid == 0) alarm(20);
      child = pid;
    });
    if (child == 0) _exit(3);  // no error
  } catch (const Error&) {
    if (child == 0) _exit(0);
    FAIL() << "in the parent";
  }
  int status = 0;
  waitpid(child, &status, 0);
  code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  EXPECT_EQ(code, 0);
}

#endif

}  // namespace
}  // namespace quire
