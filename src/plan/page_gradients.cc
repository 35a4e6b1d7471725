// Counts the users of pages, and sums and writes the rows of shared ones. Plan layer.
#include "plan/page_gradients.h"

#include <algorithm>
#include <cstring>

#include "kernels/backward/rows.h"
#include "kernels/prefill/key_tile.h"
#include "kernels/typed_functions.h"
#include "plan/forward_call.h"
#include "runtime/ceil_div.h"
#include "runtime/run_parallel.h"

namespace quire::plan {
namespace {

// About how many rows a task clears or writes.
constexpr std::int64_t kRowsAtOnce = 4096;

std::int64_t columns_of(std::int64_t dim) { return kernels::whole_panels(static_cast<int>(dim)); }

// Clears rows [begin, end) of all heads of a page. 0 is all zero bytes in every float type.
void clear_rows(const TensorView& to, std::int64_t page, std::int64_t begin, std::int64_t end) {
  const Shape& strides = to.strides();
  const std::int64_t size = dtype_size(to.dtype());
  const std::int64_t columns = to.dim(3);
  for (std::int64_t h = 0; h < to.dim(1); ++h) {
    for (std::int64_t row = begin; row < end; ++row) {
      char* const at = static_cast<char*>(to.data()) +
                       (page * strides[0] + h * strides[1] + row * strides[2]) * size;
      if (strides[3] == 1) {
        std::memset(at, 0, columns * size);
        continue;
      }
      for (std::int64_t i = 0; i < columns; ++i) std::memset(at + i * strides[3] * size, 0, size);
    }
  }
}

// Calls body(i) for i in [0, count), in tasks; each i covers `rows` rows.
template <class Body>
void for_pages(Executor& executor, std::int64_t count, std::int64_t rows, const Body& body) {
  const std::int64_t at_once =
      std::max<std::int64_t>(kRowsAtOnce / std::max<std::int64_t>(rows, 1), 1);
  run_parallel(executor, ceil_div(count, at_once), [&](std::size_t claim, std::size_t) {
    const std::int64_t begin = static_cast<std::int64_t>(claim) * at_once;
    const std::int64_t end = std::min(begin + at_once, count);
    for (std::int64_t i = begin; i < end; ++i) body(i);
  });
}

}  // namespace

PageGradients::PageGradients(const layout::KeyLayout& layout, const Sizes& sizes)
    : sizes_(sizes), page_size_(layout.page_size()) {
  count_users(layout);
  list_uses(layout);
  const std::int64_t sums = std::ssize(shared_);
  turns_ = std::make_unique<kernels::Turn[]>(sums * sizes_.kv_heads);
  const auto make = [&](std::int64_t dim) {
    return Tensor::empty({sums, sizes_.kv_heads, page_size_, columns_of(dim)}, sizes_.compute_type);
  };
  if (sizes_.wants_k) k_sums_ = make(sizes_.head_dim);
  if (sizes_.wants_v) v_sums_ = make(sizes_.v_head_dim);
}

// A sequence that uses a page twice counts as two users.
void PageGradients::count_users(const layout::KeyLayout& layout) {
  for (std::int64_t b = 0; b < sizes_.sequences; ++b) {
    const std::int64_t length = layout.length(b);
    for (std::int64_t key = 0; key < length; key += page_size_) {
      const std::int64_t number = layout.place(b, key);
      if (number < 0) continue;
      if (number >= std::ssize(pages_)) pages_.resize(static_cast<std::size_t>(number) + 1);
      Page& page = pages_[number];
      page.rows = std::min(page_size_, length - key);
      if (++page.users != 2) continue;
      page.sum = static_cast<std::int32_t>(shared_.size());
      shared_.push_back(static_cast<std::int32_t>(number));
    }
  }
}

void PageGradients::list_uses(const layout::KeyLayout& layout) {
  std::int64_t longest = 0;
  for (std::int64_t b = 0; b < sizes_.sequences; ++b) longest = std::max(longest, layout.length(b));
  std::vector<std::int32_t> turns(shared_.size());
  for (std::int64_t begin = 0; begin < longest; begin += sizes_.chunk_keys) {
    for (std::int64_t b = 0; b < sizes_.sequences; ++b) {
      const std::int64_t end = std::min(begin + sizes_.chunk_keys, layout.length(b));
      for (std::int64_t key = begin; key < end;) {
        const std::int64_t number = layout.place(b, key), row = key % page_size_;
        const std::int64_t count = std::min(page_size_ - row, end - key);
        const std::int32_t sum = number < 0 ? -1 : pages_[number].sum;
        if (number < 0 || sum >= 0) {
          uses_.push_back({.first = static_cast<std::int32_t>(key - begin),
                           .count = static_cast<std::int32_t>(count),
                           .row = static_cast<std::int32_t>(row),
                           .sum = sum,
                           .turn = sum < 0 ? 0 : turns[sum]++});
        }
        key += count;
      }
      first_use_.push_back(std::ssize(uses_));
    }
  }
}

std::span<const PageUse> PageGradients::uses(std::int64_t sequence, std::int64_t chunk) const {
  const std::size_t at = chunk * sizes_.sequences + sequence;
  return std::span(uses_).subspan(first_use_[at], first_use_[at + 1] - first_use_[at]);
}

template <class T>
PageGradients::Sums<T> PageGradients::sums(const PageUse& use, std::int64_t kv_head) {
  const std::int64_t at = use.sum * sizes_.kv_heads + kv_head, row = at * page_size_ + use.row;
  Sums<T> sums{.turn = &turns_[at]};
  if (sizes_.wants_k) sums.k = static_cast<T*>(k_sums_.data()) + row * k_sums_.dim(3);
  if (sizes_.wants_v) sums.v = static_cast<T*>(v_sums_.data()) + row * v_sums_.dim(3);
  return sums;
}

void PageGradients::begin_run(Executor& executor, const Outputs& outputs) {
  const std::int64_t rows = sizes_.kv_heads * page_size_;
  for (const TensorView* to : {outputs.k, outputs.v}) {
    if (to == nullptr) continue;
    for_pages(executor, to->dim(0), rows, [&](std::int64_t i) {
      const Page page = i < std::ssize(pages_) ? pages_[i] : Page();
      if (page.sum < 0) clear_rows(*to, i, page.rows, page_size_);
    });
  }
  for (std::int64_t i = 0; i < std::ssize(shared_) * sizes_.kv_heads; ++i) turns_[i].reset();
  for (Tensor* sums : {&k_sums_, &v_sums_}) {
    if (sums->rank() != 4) continue;
    const std::size_t bytes = (rows * sums->dim(3)) * dtype_size(sums->dtype());
    for_pages(executor, sums->dim(0), rows, [&](std::int64_t i) {
      std::memset(static_cast<char*>(sums->data()) + static_cast<std::size_t>(i) * bytes, 0, bytes);
    });
  }
}

template <class T>
void PageGradients::write_sum(std::int64_t sum, const kernels::KernelTable& table,
                              const Tensor& sums, const TensorView& to) const {
  const Shape& strides = to.strides();
  const std::int64_t page = shared_[sum], columns = sums.dim(3);
  for (std::int64_t h = 0; h < sizes_.kv_heads; ++h) {
    const T* const rows =
        static_cast<const T*>(sums.data()) + (sum * sizes_.kv_heads + h) * page_size_ * columns;
    kernels::write_rows<T>(
        kernels::forward_functions<T>(table),
        {rows, columns, static_cast<int>(page_size_), static_cast<int>(to.dim(3))},
        {to.data(), steps_of(to)}, page * strides[0] + h * strides[1]);
  }
}

void PageGradients::end_run(Executor& executor, const kernels::KernelTable& table,
                            const Outputs& outputs) {
  const auto write = [&](const Tensor& sums, const TensorView* to) {
    if (to == nullptr) return;
    for_pages(executor, std::ssize(shared_), sizes_.kv_heads * page_size_, [&](std::int64_t sum) {
      sizes_.compute_type == DType::f64 ? write_sum<double>(sum, table, sums, *to)
                                        : write_sum<float>(sum, table, sums, *to);
    });
  };
  write(k_sums_, outputs.k);
  write(v_sums_, outputs.v);
}

std::size_t PageGradients::bytes() const {
  const auto of = [](const Tensor& tensor) { return tensor.numel() * dtype_size(tensor.dtype()); };
  return of(k_sums_) + of(v_sums_) + pages_.size() * sizeof(Page) + uses_.size() * sizeof(PageUse) +
         first_use_.size() * sizeof(first_use_[0]) +
         shared_.size() * static_cast<std::size_t>(sizes_.kv_heads) * sizeof(kernels::Turn);
}

template PageGradients::Sums<float> PageGradients::sums(const PageUse&, std::int64_t);
template PageGradients::Sums<double> PageGradients::sums(const PageUse&, std::int64_t);

}  // namespace quire::plan
