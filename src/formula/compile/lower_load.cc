// Lowers buffer reads: general indices to checked offsets, affine ones to strided loads, sums over
// trailing axes. Every read is inside the buffer, either by proof or because the index was clamped
// and reported. Formula layer.
#include <algorithm>

#include "formula/compile/lower.h"
#include "formula/type_rules.h"
#include "quire/error.h"
#include "runtime/fail.h"

namespace quire::formula {

using kernels::TileClass;
using kernels::TileOp;
using kernels::TileType;

namespace {

// Shape and strides of a buffer; one without data is taken as row-major.
struct Layout {
  explicit Layout(const Buffer& buffer)
      : shape(buffer.shape()),
        strides(buffer.has_data() ? buffer.view().strides() : contiguous_strides(buffer.shape())) {}
  Shape shape, strides;
};

// Offsets of all elements of the axes from `leading` on, in row-major order.
std::vector<std::int64_t> trailing_offsets(const Layout& layout, std::size_t leading) {
  std::vector<std::int64_t> offsets{0};
  for (std::size_t axis = leading; axis < layout.shape.rank(); ++axis) {
    std::vector<std::int64_t> next;
    next.reserve(offsets.size() * layout.shape[axis]);
    for (const std::int64_t offset : offsets)
      for (std::int64_t i = 0; i < layout.shape[axis]; ++i)
        next.push_back(offset + i * layout.strides[axis]);
    offsets = std::move(next);
  }
  return offsets;
}

// Whether all offsets that indices within the shape can give fit into 32 bits.
bool offsets_fit_int32(const Shape& shape, const Shape& strides, std::size_t axes) {
  std::int64_t lo = 0, hi = 0;
  for (std::size_t axis = 0; axis < axes; ++axis) {
    const std::int64_t last = std::max<std::int64_t>(shape[axis] - 1, 0) * strides[axis];
    (last < 0 ? lo : hi) += last;
  }
  return fits_int32(Interval::ints(lo, hi));
}

}  // namespace

// kSum and kDot treat the axes after `leading` as one list of elements.
std::int16_t Lowering::add_buffer(const Buffer& buffer, std::size_t leading) {
  if (!buffer.has_data() && !options_.allow_declared)
    fail(ErrorKind::value, "formula", "buffer '{}' is only declared: it has no data to evaluate",
         buffer.name());
  const Layout layout(buffer);
  kernels::TileBuffer entry{
      .data = buffer.view().data(), .dtype = buffer.dtype(), .name = buffer.name()};
  if (leading + 1 == layout.shape.rank()) {
    entry.trailing_count = layout.shape[leading];
    entry.trailing_step = layout.strides[leading];
  } else if (leading < layout.shape.rank()) {
    const auto list =
        std::make_shared<const std::vector<std::int64_t>>(trailing_offsets(layout, leading));
    entry.trailing_count = static_cast<std::int64_t>(list->size());
    entry.trailing_offsets = list->data();
    low_.keep_alive.push_back(list);
  }
  for (std::size_t i = 0; i < low_.buffers.size(); ++i) {
    const kernels::TileBuffer& known = low_.buffers[i];
    if (known.data == entry.data && known.dtype == entry.dtype && known.name == entry.name &&
        entry.trailing_offsets == nullptr && known.trailing_offsets == nullptr &&
        known.trailing_count == entry.trailing_count && known.trailing_step == entry.trailing_step)
      return static_cast<std::int16_t>(i);
  }
  if (low_.buffers.size() >= 32767)
    fail(ErrorKind::value, "formula", "a mod may read at most 32,767 different buffers");
  low_.buffers.push_back(entry);
  low_.keep_alive.push_back(std::make_shared<Buffer>(buffer));
  return static_cast<std::int16_t>(low_.buffers.size() - 1);
}

TileType Lowering::load_type(const Buffer& buffer) const {
  if (element_type(buffer.dtype()) == ValueType::kFloat) return TileType::kFloat;
  return buffer.dtype() == DType::i64 || options_.node_by_node ? TileType::kInt64
                                                               : TileType::kInt32;
}

// An index within 0..n-1, as int32 if n allows; checked unless proved.
LowId Lowering::lower_index(NodeId index, const Buffer& buffer, int axis) {
  const std::int64_t size = buffer.shape()[axis];
  const LowId raw = value(index);
  const Interval range = bound(index);
  const bool proved = index_in_bounds(range, size) && !options_.node_by_node;
  if (proved && range.int_lo >= 0) return raw;
  // int32 code also needs a size that fits; then wrapping a valid index cannot overflow.
  const bool narrow = is_narrow(raw) && fits_int32(Interval::ints(0, size));
  const LowId typed = low_.as_type(raw, narrow ? TileType::kInt32 : TileType::kInt64);
  const LowId wrapped = low_.add({.op = narrow ? TileOp::kIndexI : TileOp::kIndexL,
                                  .type = low_[typed].type,
                                  .value_class = low_[typed].value_class,
                                  .a = typed,
                                  .imm = size});
  if (!proved)
    low_.add_check({kernels::TileCheck::Kind::kIndex, wrapped, typed, buffer.name(), axis, size});
  const bool fits = fits_int32(Interval::ints(0, size)) && !options_.node_by_node;
  return low_.as_type(wrapped, fits ? TileType::kInt32 : TileType::kInt64);
}

// The offset, in elements, of an element or of the first of its trailing elements.
LowId Lowering::gather_offset(std::span<const NodeId> indices, const Buffer& buffer,
                              const Shape& strides) {
  const bool narrow =
      !options_.node_by_node && offsets_fit_int32(buffer.shape(), strides, indices.size());
  const TileType type = narrow ? TileType::kInt32 : TileType::kInt64;
  if (const LowAffine offset = affine_offset(indices, buffer, strides); offset.known) {
    const bool varies = offset.lane_step != 0 || offset.row_step != 0;
    return varies ? iota(offset, type) : low_.as_type(offset.uniform, type);
  }
  LowId sum = kNoLow;
  for (std::size_t axis = 0; axis < indices.size(); ++axis) {
    LowId term = lower_index(indices[axis], buffer, static_cast<int>(axis));
    const std::int64_t stride = strides[axis];
    term = low_.as_type(term, type);
    if (stride != 1)
      term = low_.add_op(narrow ? TileOp::kMulI : TileOp::kMulL, type, term,
                         low_.int_const(stride, type));
    sum =
        sum == kNoLow ? term : low_.add_op(narrow ? TileOp::kAddI : TileOp::kAddL, type, sum, term);
  }
  return sum == kNoLow ? low_.int_const(0, type) : sum;
}

// The offset as an affine form, if every index is affine and proved to need no check and no
// wrapping.
LowAffine Lowering::affine_offset(std::span<const NodeId> indices, const Buffer& buffer,
                                  const Shape& strides) {
  if (options_.node_by_node) return {};
  LowAffine offset;
  for (std::size_t axis = 0; axis < indices.size(); ++axis) {
    const Interval& range = bound(indices[axis]);
    const std::int64_t size = buffer.shape()[axis];
    const bool wraps = range.int_hi < 0;
    LowAffine term = affine(indices[axis]);
    if (!term.known || !index_in_bounds(range, size) || (range.int_lo < 0 && !wraps)) return {};
    if (wraps)
      term.uniform = low_.add_op(TileOp::kAddL, TileType::kInt64, term.uniform,
                                 low_.int_const(size, TileType::kInt64));
    term = affine_product(term, strides[axis]);
    offset = offset.known ? affine_sum(offset, term, false) : term;
  }
  return offset.known ? offset : LowAffine{true, 0, 0, low_.int_const(0, TileType::kInt64)};
}

LowId Lowering::lower_load(NodeId id) {
  const Buffer& buffer = graph_->buffer((*graph_)[id].buffers[0]);
  const std::int16_t entry = add_buffer(buffer, buffer.shape().rank());
  const TileType type = load_type(buffer);
  const auto indices = graph_->args(id);
  if (element_count(buffer.shape()) ==
      0) {  // nothing to read; the index checks report visible elements
    for (std::size_t axis = 0; axis < indices.size(); ++axis)
      lower_index(indices[axis], buffer, static_cast<int>(axis));
    return type == TileType::kFloat ? float_const(0) : low_.int_const(0, type);
  }
  const Shape strides = Layout(buffer).strides;
  if (const LowAffine offset = affine_offset(indices, buffer, strides); offset.known) {
    const TileOp op = type == TileType::kFloat   ? TileOp::kStridedF
                      : type == TileType::kInt32 ? TileOp::kStridedI
                                                 : TileOp::kStridedL;
    return low_.add({.op = op,
                     .type = type,
                     .value_class = affine_class(offset.lane_step, offset.row_step),
                     .a = offset.uniform,
                     .lane_step = offset.lane_step,
                     .row_step = offset.row_step,
                     .buffer = entry});
  }
  const LowId offset = gather_offset(indices, buffer, strides);
  const bool narrow = is_narrow(offset);
  const TileOp op = type == TileType::kFloat ? (narrow ? TileOp::kGatherIntF : TileOp::kGatherLongF)
                    : type == TileType::kInt32
                        ? (narrow ? TileOp::kGatherIntI : TileOp::kGatherLongI)
                        : (narrow ? TileOp::kGatherIntL : TileOp::kGatherLongL);
  return low_.add({.op = op,
                   .type = type,
                   .value_class = low_[offset].value_class,
                   .a = offset,
                   .buffer = entry});
}

// The offset of the first element that kSum or kDot reads.
LowId Lowering::chain_offset(std::span<const NodeId> indices, const Buffer& buffer) {
  return low_.as_type(gather_offset(indices, buffer, Layout(buffer).strides), TileType::kInt64);
}

LowRead Lowering::lower_read(const Formula& read, int side) {
  lower(read);
  const NodeId id = read.root();
  const Node& node = (*graph_)[id];
  const auto args = graph_->args(id);
  const std::size_t split = node.op == Op::kDot ? node.split : args.size();
  const auto indices = [&](int of) { return of == 0 ? args.first(split) : args.subspan(split); };
  const auto buffer = [&](int of) -> const Buffer& { return graph_->buffer(node.buffers[of]); };
  // Rows of the gradient: the elements that one index addresses are contiguous.
  std::vector<std::int64_t> leading;
  for (std::size_t axis = 0; axis < indices(side).size(); ++axis)
    leading.push_back(buffer(side).shape()[axis]);
  const Shape strides = contiguous_strides(Shape(leading));
  LowRead result;
  result.index = gather_offset(indices(side), buffer(side), strides);
  result.affine = affine_offset(indices(side), buffer(side), strides);
  if (node.op == Op::kDot) {
    result.other_offset = chain_offset(indices(1 - side), buffer(1 - side));
    result.other_buffer = add_buffer(buffer(1 - side), indices(1 - side).size());
  }
  return result;
}

LowId Lowering::lower_chain(NodeId id) {
  const Node& node = (*graph_)[id];
  const bool dot = node.op == Op::kDot;
  const auto args = graph_->args(id);
  const std::size_t split = dot ? node.split : args.size();
  const Buffer& first = graph_->buffer(node.buffers[0]);
  const Buffer& second = dot ? graph_->buffer(node.buffers[1]) : first;
  const std::int16_t entry = add_buffer(first, split);
  const std::int16_t other = dot ? add_buffer(second, args.size() - split) : std::int16_t{-1};
  const bool is_float = node.type == ValueType::kFloat;
  const LowId a = chain_offset(args.first(split), first);
  const LowId b = dot ? chain_offset(args.subspan(split), second) : kNoLow;
  if (element_count(first.shape()) == 0 || element_count(second.shape()) == 0)
    return is_float ? float_const(0)
                    : low_.as_type(low_.int_const(0, TileType::kInt64), int_type(id));
  LowNode chain{.op = dot ? (is_float ? TileOp::kDotF : TileOp::kDotL)
                          : (is_float ? TileOp::kSumF : TileOp::kSumL),
                .type = is_float ? TileType::kFloat : TileType::kInt64,
                .value_class = low_[a].value_class,
                .a = a,
                .b = b,
                .buffer = entry,
                .other_buffer = other};
  if (dot) chain.value_class = join(chain.value_class, low_[b].value_class);
  const LowId result = low_.add(chain);
  return is_float ? result : narrowed(id, result);
}

}  // namespace quire::formula
