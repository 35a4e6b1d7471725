// The shared state of one parallel run: the ascending counter that hands out indices, and the
// exception to rethrow. Each worker calls work() once. Creates no threads and orders no memory; the
// executor does both. Runtime layer.
#pragma once
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>

#include "quire/executor.h"

namespace quire {

class Claim {
 public:
  Claim(size_t n, Executor::Body body) : n_(n), body_(body) {}

  // Runs indices until none are left or one has thrown. Returns normally in both cases.
  void work(size_t worker) noexcept;

  // Call when all workers have returned: rethrows the exception of the lowest index that threw, if
  // any.
  void finish();

 private:
  const size_t n_;
  const Executor::Body body_;
  std::atomic<size_t> next_{0};  // each worker pushes it past n_ by one: n_ stays far from SIZE_MAX
  std::mutex mutex_;
  size_t failed_index_ = 0;  // under mutex_, like failure_
  std::exception_ptr failure_;
};

}  // namespace quire
