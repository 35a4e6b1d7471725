// Tensor: allocation and ownership. Tensor layer.
#include "quire/tensor.h"

#include <cstring>
#include <limits>
#include <new>
#include <utility>

#include "quire/error.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"
#include "runtime/memory.h"
#include "tensor/convert.h"

namespace quire {
namespace {

constexpr size_t kAlignment = 64;

size_t byte_count(const Shape& shape, DType dtype) {
  const int64_t count = element_count(shape);
  const int64_t size = dtype_size(dtype);
  // Room to round up to whole cache lines.
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() - int64_t{kAlignment};
  if (count > kMost / size) {
    fail(ErrorKind::value, "Tensor", "too many elements; got {} of {}", to_string(shape),
         dtype_name(dtype));
  }
  return count * size;
}

std::shared_ptr<void> allocate_aligned(size_t bytes, size_t alignment) {
  const auto release = [alignment](void* memory) {
    ::operator delete(memory, std::align_val_t{alignment});
  };
  return {::operator new(bytes, std::align_val_t{alignment}), release};
}

// Whole cache lines and at least one, so that every tensor that is asked for has a distinct
// address. Large tensors use large pages: attention walks through many sequences at once, each in a
// page of its own.
std::shared_ptr<void> allocate(size_t bytes) {
  const size_t rounded =
      bytes == 0 ? kAlignment : (bytes + kAlignment - 1) / kAlignment * kAlignment;
  if (rounded < 2 * kHugePageBytes) return allocate_aligned(rounded, kAlignment);
  std::shared_ptr<void> memory = allocate_aligned(rounded, kHugePageBytes);
  advise_huge_pages(memory.get(), rounded);
  return memory;
}

// Where all tensors made by default point to, without memory of their own: a plan holds a dozen.
alignas(kAlignment) char no_elements[kAlignment];

// Checked once.
const TensorView& view_of_nothing() {
  static const TensorView view(no_elements, DType::f32, Shape{0});
  return view;
}

}  // namespace

Tensor::Tensor() : view_(view_of_nothing()) {}

Tensor::Tensor(const Shape& shape, DType dtype) : Tensor(empty(shape, dtype)) {
  std::memset(data(), 0, byte_count(shape, dtype));
}

Tensor::Tensor(std::shared_ptr<void> memory, const TensorView& view)
    : memory_(std::move(memory)), view_(view) {}

Tensor Tensor::empty(const Shape& shape, DType dtype) {
  std::shared_ptr<void> memory = allocate(byte_count(shape, dtype));
  const TensorView view(memory.get(), dtype, shape);
  return Tensor(std::move(memory), view);
}

Tensor Tensor::copy_of(const void* values, size_t count, DType dtype, const Shape& shape) {
  if (static_cast<uint64_t>(element_count(shape)) != count) {
    fail(ErrorKind::value, "Tensor", "shape {} needs {} values; got {}", to_string(shape),
         element_count(shape), count);
  }
  Tensor result = empty(shape, dtype);
  if (count > 0) std::memcpy(result.data(), values, count * dtype_size(dtype));
  return result;
}

Tensor Tensor::from(const std::vector<bool>& values, const Shape& shape) {
  const std::vector<uint8_t> bytes(values.begin(), values.end());
  return copy_of(bytes.data(), bytes.size(), DType::boolean, shape);
}

Tensor Tensor::from(const std::vector<bool>& values) {
  return from(values, {static_cast<int64_t>(values.size())});
}

Tensor Tensor::clone() const { return contiguous(view_); }

Tensor Tensor::to(DType dtype) const {
  const FloatEnv float_env;
  return quire::to(view_, dtype);
}

Tensor Tensor::reshape(const Shape& shape) const { return Tensor(memory_, view_.reshape(shape)); }

Tensor contiguous(const ConstTensorView& view) { return to(view, view.dtype()); }

Tensor to(const ConstTensorView& view, DType dtype) {
  const FloatEnv float_env;
  Tensor result = Tensor::empty(view.shape(), dtype);
  copy_elements(view, dtype, result.data());
  return result;
}

}  // namespace quire
