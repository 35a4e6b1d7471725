// Buffer: construction, names, checks. Formula layer.
#include "quire/buffer.h"

#include <utility>

#include "quire/error.h"
#include "runtime/fail.h"

namespace quire {

struct Buffer::Data {
  std::shared_ptr<const void> owner;  // null when borrowed or declared
  ConstTensorView view;               // empty when declared
  DType dtype;
  Shape shape;
  bool has_data;
};

Buffer::Buffer(std::shared_ptr<const Data> data, BufferOptions options)
    : data_(std::move(data)),
      name_(options.name.empty() ? "buffer" : std::move(options.name)),
      wants_gradient_(options.wants_gradient),
      is_page_table_(options.is_page_table) {
  if (wants_gradient_ && !is_floating(dtype())) {
    fail(ErrorKind::type, "Buffer", "only floats have a gradient; buffer '{}' is {}", name_,
         dtype_name(dtype()));
  }
}

Buffer::Buffer(Tensor tensor, BufferOptions options)
    : Buffer(std::make_shared<const Data>(Data{std::make_shared<const Tensor>(tensor),
                                               std::as_const(tensor).view(), tensor.dtype(),
                                               tensor.shape(), true}),
             std::move(options)) {}

Buffer Buffer::borrow(ConstTensorView view, BufferOptions options) {
  return share(view, nullptr, std::move(options));
}

Buffer Buffer::share(ConstTensorView view, std::shared_ptr<const void> owner,
                     BufferOptions options) {
  return Buffer(
      std::make_shared<const Data>(Data{std::move(owner), view, view.dtype(), view.shape(), true}),
      std::move(options));
}

Buffer Buffer::declare(DType dtype, const Shape& shape, BufferOptions options) {
  element_count(shape);  // throws for an impossible shape
  return Buffer(std::make_shared<const Data>(Data{nullptr, ConstTensorView(), dtype, shape, false}),
                std::move(options));
}

Buffer Buffer::renamed(std::string name) const {
  Buffer copy = *this;
  copy.name_ = std::move(name);
  return copy;
}

Buffer Buffer::as_page_table() const {
  Buffer copy = *this;
  copy.is_page_table_ = true;
  return copy;
}

bool Buffer::has_data() const { return data_->has_data; }
DType Buffer::dtype() const { return data_->dtype; }
const Shape& Buffer::shape() const { return data_->shape; }
const ConstTensorView& Buffer::view() const { return data_->view; }

bool Buffer::is_same(const Buffer& other) const {
  return data_ == other.data_ && name_ == other.name_ && wants_gradient_ == other.wants_gradient_ &&
         is_page_table_ == other.is_page_table_;
}

}  // namespace quire
