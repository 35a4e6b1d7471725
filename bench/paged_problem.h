// PagedProblem: one call over keys in pages, beside the same keys in dense tensors, and ratios of
// times. Benchmarks only.
#pragma once
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "bench/measure.h"
#include "bench/settings.h"
#include "quire/paged.h"
#include "quire/tensor.h"

namespace quire::bench {

inline Tensor random_tensor(const Shape& shape, DType dtype) {
  Tensor values = Tensor::empty(shape, DType::f32);
  std::uint32_t state = 12345;
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    state = state * 1664525 + 1013904223;
    values.data_as<float>()[i] = static_cast<float>(state >> 8) * 0x1p-23F - 1;
  }
  return values.to(dtype);
}

/// Dense tensors and the same keys in pages of a pool, in random order.
struct PagedProblem {
  std::int64_t batch = 1, q_len = 1, kv_len = 8192, page_size = 128, pool = 1;
  DType dtype = DType::f32;
  std::int64_t q_heads = 32, kv_heads = 8, dim = 128;
  /// A pool as PyTorch's: all pages of a head, then those of the next; in memory as its allocator
  /// gives it, without large pages, for dense keys too.
  bool torch_pool = false;

  std::string name() const {
    return fmt::format(
        "{} {} B{} H{}/{} L{} S{} D{} page {}{}{}", q_len == 1 ? "decode" : "prefill",
        dtype_name(dtype), batch, q_heads, kv_heads, q_len, kv_len, dim, page_size,
        pool == 1 ? "" : fmt::format(" pool x{}", pool), torch_pool ? " as torch's" : "");
  }
};

/// A tensor, or a copy of it in memory without large pages, a line behind a page's begin.
class PlacedTensor {
 public:
  PlacedTensor() = default;
  PlacedTensor(Tensor tensor, bool in_small_pages) : tensor_(std::move(tensor)) {
    if (!in_small_pages) return;
    const auto bytes =
        static_cast<std::size_t>(tensor_.numel()) * dtype_size(tensor_.dtype()) / 64 * 64 + 64;
    memory_.reset(std::aligned_alloc(64, bytes), std::free);
    std::memcpy(memory_.get(), tensor_.data(),
                static_cast<std::size_t>(tensor_.numel()) * dtype_size(tensor_.dtype()));
    const Shape shape = tensor_.shape();
    const DType dtype = tensor_.dtype();
    tensor_ = Tensor();
    view_ = ConstTensorView(memory_.get(), dtype, shape);
  }
  ConstTensorView view() const { return memory_ == nullptr ? tensor_.view() : view_; }

 private:
  Tensor tensor_;
  std::shared_ptr<void> memory_;
  ConstTensorView view_;
};

struct PagedTensors {
  Tensor q, out, table, lengths;
  PlacedTensor k, v, k_pool, v_pool;
  bool torch_pool;
  std::int64_t page_size;

  explicit PagedTensors(const PagedProblem& p)
      : q(random_tensor({p.batch, p.q_heads, p.q_len, p.dim}, p.dtype)),
        out(Tensor::empty({p.batch, p.q_heads, p.q_len, p.dim}, p.dtype)),
        lengths({p.batch}, DType::i64),
        k(random_tensor({p.batch, p.kv_heads, p.kv_len, p.dim}, p.dtype), p.torch_pool),
        v(random_tensor({p.batch, p.kv_heads, p.kv_len, p.dim}, p.dtype), p.torch_pool),
        torch_pool(p.torch_pool),
        page_size(p.page_size) {
    const std::int64_t pages = (p.kv_len + p.page_size - 1) / p.page_size;
    const std::int64_t all = pages * p.batch * p.pool;
    std::vector<std::int64_t> places(static_cast<std::size_t>(all));
    std::iota(places.begin(), places.end(), 0);
    std::mt19937_64 random(1);
    std::shuffle(places.begin(), places.end(), random);
    table = Tensor({p.batch, pages}, DType::i64);
    std::copy_n(places.begin(), table.numel(), table.data_as<std::int64_t>());
    std::fill_n(lengths.data_as<std::int64_t>(), p.batch, p.kv_len);
    k_pool = {fill(k.view(), p, all), p.torch_pool};
    v_pool = {fill(v.view(), p, all), p.torch_pool};
  }

  ConstTensorView k_pages() const { return pages(k_pool); }
  ConstTensorView v_pages() const { return pages(v_pool); }
  PagedKeys keys() const { return {k_pages(), v_pages(), table, lengths}; }

 private:
  ConstTensorView pages(const PlacedTensor& placed) const {
    return torch_pool ? pages_of(placed.view(), page_size) : placed.view();
  }
  Tensor fill(const ConstTensorView& from, const PagedProblem& p, std::int64_t pages) const {
    Tensor pool = torch_pool ? Tensor::empty({1, p.kv_heads, pages * p.page_size, p.dim}, p.dtype)
                             : Tensor::empty({pages, p.kv_heads, p.page_size, p.dim}, p.dtype);
    const auto row = static_cast<std::int64_t>(dtype_size(p.dtype)) * p.dim;
    for (std::int64_t b = 0; b < p.batch; ++b)
      for (std::int64_t h = 0; h < p.kv_heads; ++h)
        for (std::int64_t key = 0; key < p.kv_len; key += p.page_size) {
          const std::int64_t page = table.view().at<std::int64_t>({b, key / p.page_size});
          const std::int64_t at = torch_pool ? h * pages + page : page * p.kv_heads + h;
          std::memcpy(
              static_cast<char*>(pool.data()) + at * p.page_size * row,
              static_cast<const char*>(from.data()) + ((b * p.kv_heads + h) * p.kv_len + key) * row,
              static_cast<std::size_t>(std::min(p.page_size, p.kv_len - key) * row));
        }
    return pool;
  }
};

inline void print(const Settings& settings, const std::string& name, const char* what, double value,
                  double low, double high) {
  if (settings.json) {
    fmt::print("{{\"name\": \"{}\", \"{}\": {:.4f}, \"low\": {:.4f}, \"high\": {:.4f}}}\n", name,
               what, value, low, high);
  } else {
    fmt::print("{:64} {:8.3f} {} ({:.3f}-{:.3f})\n", name, value, what, low, high);
  }
  std::fflush(stdout);
}

/// Time of a over that of b, turn and turn about.
inline void print_ratio(const Settings& settings, const std::string& name, const char* what,
                        const std::function<void()>& a, const std::function<void()>& b) {
  a();
  b();
  double once = now();
  b();
  once = now() - once;
  const int inner = static_cast<int>(std::clamp(0.01 / once, 1.0, 1000.0));
  const auto time = [&](const std::function<void()>& run) {
    const double start = now();
    for (int i = 0; i < inner; ++i) run();
    return now() - start;
  };
  std::vector<double> ratios;
  for (int i = 0; i < settings.repetitions; ++i) {
    const double first = time(a), other = time(b), second = time(a);
    ratios.push_back((first + second) / 2 / other);
  }
  print(settings, name, what, median(ratios), *std::min_element(ratios.begin(), ratios.end()),
        *std::max_element(ratios.begin(), ratios.end()));
}

}  // namespace quire::bench
