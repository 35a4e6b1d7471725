// Forks while other threads are inside calls; every child must compute the same or be told at once.
// Built by test_process.py.
//
//   fork CHILDREN
#include <quire/quire.h>
#include <quire/quire_c.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

using namespace quire;

namespace {

bool same(const Tensor& a, const Tensor& b) {
  return std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.numel()) * 4) == 0;
}

Tensor values(std::int64_t length) {
  Tensor tensor({1, 4, length, 32}, DType::f32);
  for (std::int64_t i = 0; i < tensor.numel(); ++i)
    tensor.data_as<float>()[i] = static_cast<float>(i * 7919 % 1013) / 1013 - 0.5f;
  return tensor;
}

Tensor compute(const Tensor& q) {
  const MaskMod rule = MaskMod::parse("(q_idx * 7919 + kv_idx * 104729) % 5 != 0");
  const BlockMask mask = create_block_mask(rule, 1, 1, q.dim(2), q.dim(2), {.block_size = 32});
  return flex_attention(q, q, q, {.block_mask = mask});
}

}  // namespace

int main(int, char** arguments) {
  const int children = std::atoi(arguments[1]);
  const Tensor q = values(300), expected = compute(q);
  const std::shared_ptr<Executor> own = make_thread_pool(3);
  std::atomic<bool> stop{false};
  std::vector<std::thread> busy;
  for (int i = 0; i < 3; ++i) {
    busy.emplace_back([&, i] {
      while (!stop) {
        if (i == 2) {
          set_num_threads(2 + static_cast<int>(own->concurrency()) % 3);
          (void)flex_attention(q, q, q, {.executor = own.get()});
        } else {
          (void)compute(q);
        }
      }
    });
  }
  std::vector<pid_t> pids;
  for (int i = 0; i < children; ++i) {
    usleep(2000);
    const pid_t pid = fork();
    if (pid < 0) return 3;
    if (pid > 0) {
      pids.push_back(pid);
      continue;
    }
    alarm(60);
    bool fine = same(compute(q), expected);
    fine = fine && same(flex_attention(q, q, q, {.executor = own.get()}), flex_attention(q, q, q));
    std::thread other([&] { fine = fine && same(compute(q), expected); });
    other.join();
    set_num_threads(2);
    fine = fine && same(compute(q), expected) && quire_set_num_threads(3) == QUIRE_OK;
    fine = fine && same(compute(q), expected);
    _exit(fine ? 0 : 1);
  }
  int failed = 0;
  for (const pid_t pid : pids) {
    int status = 0;
    waitpid(pid, &status, 0);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) ++failed;
  }
  stop = true;
  for (std::thread& thread : busy) thread.join();
  std::printf("%d of %d children failed\n", failed, children);
  return 0;
}
