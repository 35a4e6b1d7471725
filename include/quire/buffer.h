// Buffer: a tensor that a mod captures and reads by index. Copies share the data. A formula keeps
// the buffers it reads alive (unless borrowed); their *contents* may change between runs, their
// shape and dtype may not. Public; formula layer.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "quire/dtype.h"
#include "quire/export.h"
#include "quire/tensor.h"

namespace quire {

struct BufferOptions {
  std::string name = {};        // in printed formulas and error texts; "buffer" if empty
  bool wants_gradient = false;  // the backward pass gives its gradient; floats only
  /// Marks PagedAttention's physical_to_logical, which maps pages of a pool to pages of a sequence.
  /// flex_attention looks for converted rules only in formulas that read such a buffer.
  bool is_page_table = false;
};

class BufferSlice;

class QUIRE_API Buffer {
 public:
  /// Shares ownership of the tensor.
  explicit Buffer(Tensor tensor, BufferOptions options = {});

  /// Copies the values into a tensor of rank 1.
  template <class T>
    requires Element<T>
  explicit Buffer(const std::vector<T>& values, BufferOptions options = {})
      : Buffer(Tensor::from(values), std::move(options)) {}

  /// Reads the caller's memory in place; the caller keeps it alive as long as any formula uses it.
  static Buffer borrow(ConstTensorView view, BufferOptions options = {});

  /// Reads memory in place and keeps `owner`, the object it belongs to, alive until no formula
  /// uses it. Its destructor may run in any thread.
  static Buffer share(ConstTensorView view, std::shared_ptr<const void> owner,
                      BufferOptions options = {});

  /// A name, dtype and shape without data: enough to explain a formula or to bound its indices.
  /// Evaluating it throws an Error that names it.
  static Buffer declare(DType dtype, const Shape& shape, BufferOptions options = {});

  /// The same data under another name.
  Buffer renamed(std::string name) const;
  /// The same data and name, with BufferOptions::is_page_table set.
  Buffer as_page_table() const;

  const std::string& name() const { return name_; }
  bool wants_gradient() const { return wants_gradient_; }
  bool is_page_table() const { return is_page_table_; }
  bool has_data() const;
  DType dtype() const;
  const Shape& shape() const;
  const ConstTensorView& view() const;  // empty if declared

  /// Whether both have the same data, name and options.
  bool is_same(const Buffer& other) const;

  /// buffer[i]: an element of a buffer of rank 1; for a higher rank, a slice to index further or to
  /// pass to sum or dot.
  template <class Index>
  BufferSlice operator[](const Index& index) const;
  /// buffer(i, j, ...): the same with several indices at once.
  template <class... Index>
  BufferSlice operator()(const Index&... index) const;

 private:
  struct Data;
  Buffer(std::shared_ptr<const Data> data, BufferOptions options);

  std::shared_ptr<const Data> data_;
  std::string name_;
  bool wants_gradient_ = false;
  bool is_page_table_ = false;
};

}  // namespace quire
