// Lowering of buffer reads: indices to checked offsets, affine reads without any, sums over trailing axes. Whatever is
// read lies inside the buffer: by proof, or because the index was clamped and reported. Formula layer.
#include <algorithm>

#include "formula/lower.h"
#include "formula/type_rules.h"
#include "quire/error.h"

namespace quire::formula {

using kernels::TileClass;
using kernels::TileOp;
using kernels::TileType;

namespace {

// Offsets of all elements of the axes from `leading` on, in row-major order.
std::vector<std::int64_t> trailing_offsets(const ConstTensorView& view, std::size_t leading) {
  std::vector<std::int64_t> offsets{0};
  for (std::size_t axis = leading; axis < view.rank(); ++axis) {
    std::vector<std::int64_t> next;
    next.reserve(offsets.size() * static_cast<std::size_t>(view.shape()[axis]));
    for (const std::int64_t offset : offsets)
      for (std::int64_t i = 0; i < view.shape()[axis]; ++i) next.push_back(offset + i * view.strides()[axis]);
    offsets = std::move(next);
  }
  return offsets;
}

// Range of offsets that indices within the shape can give; whether 32 bits hold it.
bool offsets_fit_int32(const ConstTensorView& view, std::size_t axes) {
  std::int64_t lo = 0, hi = 0;
  for (std::size_t axis = 0; axis < axes; ++axis) {
    const std::int64_t last = std::max<std::int64_t>(view.shape()[axis] - 1, 0) * view.strides()[axis];
    (last < 0 ? lo : hi) += last;
  }
  return fits_int32(Interval::ints(lo, hi));
}

}  // namespace

// kSum and kDot see the axes behind `leading` as one list of elements.
std::int16_t Lowering::add_buffer(const Buffer& buffer, std::size_t leading) {
  if (!buffer.has_data())
    throw Error(ErrorKind::value, "[formula] buffer '" + buffer.name() + "' was declared without data");
  const ConstTensorView& view = buffer.view();
  kernels::TileBuffer entry{.data = view.data(), .dtype = view.dtype()};
  if (leading + 1 == view.rank()) {
    entry.trailing_count = view.shape()[leading];
    entry.trailing_step = view.strides()[leading];
  } else if (leading < view.rank()) {
    const auto list = std::make_shared<const std::vector<std::int64_t>>(trailing_offsets(view, leading));
    entry.trailing_count = static_cast<std::int64_t>(list->size());
    entry.trailing_offsets = list->data();
    low_.keep_alive.push_back(list);
  }
  for (std::size_t i = 0; i < low_.buffers.size(); ++i) {
    const kernels::TileBuffer& known = low_.buffers[i];
    if (known.data == entry.data && known.dtype == entry.dtype && entry.trailing_offsets == nullptr &&
        known.trailing_offsets == nullptr && known.trailing_count == entry.trailing_count &&
        known.trailing_step == entry.trailing_step)
      return static_cast<std::int16_t>(i);
  }
  if (low_.buffers.size() >= 32767)
    throw Error(ErrorKind::value, "[formula] a mod may read at most 32,767 different buffers");
  low_.buffers.push_back(entry);
  low_.keep_alive.push_back(std::make_shared<Buffer>(buffer));
  return static_cast<std::int16_t>(low_.buffers.size() - 1);
}

TileType Lowering::load_type(const Buffer& buffer) const {
  if (element_type(buffer.dtype()) == ValueType::kFloat) return TileType::kFloat;
  return buffer.dtype() == DType::i64 || options_.node_by_node ? TileType::kInt64 : TileType::kInt32;
}

// An index within 0..n-1, as int32 if n allows; checked unless proved.
LowId Lowering::lower_index(NodeId index, const Buffer& buffer, int axis) {
  const std::int64_t size = buffer.shape()[static_cast<std::size_t>(axis)];
  const LowId raw = value(index);
  const Interval range = bound(index);
  const bool proved = index_in_bounds(range, size) && !options_.node_by_node;
  if (proved && range.int_lo >= 0) return raw;
  // int32 code needs a size that fits as well; then the wrapped index cannot overflow where it is valid.
  const bool narrow = is_narrow(raw) && fits_int32(Interval::ints(0, size));
  const LowId typed = low_.as_type(raw, narrow ? TileType::kInt32 : TileType::kInt64);
  const LowId wrapped = low_.add({.op = narrow ? TileOp::kIndexI : TileOp::kIndexL,
                                  .type = low_[typed].type,
                                  .value_class = low_[typed].value_class,
                                  .a = typed,
                                  .imm = size});
  if (!proved) low_.add_check({kernels::TileCheck::Kind::kIndex, wrapped, typed, buffer.name(), axis, size});
  const bool fits = fits_int32(Interval::ints(0, size)) && !options_.node_by_node;
  return low_.as_type(wrapped, fits ? TileType::kInt32 : TileType::kInt64);
}

// The offset of an element (or of the first of its trailing ones) in elements.
LowId Lowering::gather_offset(std::span<const NodeId> indices, const Buffer& buffer) {
  const ConstTensorView& view = buffer.view();
  const bool narrow = !options_.node_by_node && offsets_fit_int32(view, indices.size());
  const TileType type = narrow ? TileType::kInt32 : TileType::kInt64;
  LowId sum = kNoLow;
  for (std::size_t axis = 0; axis < indices.size(); ++axis) {
    LowId term = lower_index(indices[axis], buffer, static_cast<int>(axis));
    const std::int64_t stride = view.strides()[axis];
    term = low_.as_type(term, type);
    if (stride != 1)
      term = low_.add_op(narrow ? TileOp::kMulI : TileOp::kMulL, type, term, low_.int_const(stride, type));
    sum = sum == kNoLow ? term : low_.add_op(narrow ? TileOp::kAddI : TileOp::kAddL, type, sum, term);
  }
  return sum == kNoLow ? low_.int_const(0, type) : sum;
}

// A read at affine offsets, if every index is affine and proved to need no wrapping; kNoLow otherwise.
LowId Lowering::strided_load(std::span<const NodeId> indices, const Buffer& buffer, TileType type) {
  if (options_.node_by_node) return kNoLow;
  const ConstTensorView& view = buffer.view();
  LowAffine offset{true, 0, 0, low_.int_const(0, TileType::kInt64)};
  for (std::size_t axis = 0; axis < indices.size(); ++axis) {
    const NodeId index = indices[axis];
    const std::int64_t size = view.shape()[axis];
    const bool wraps = bound(index).int_hi < 0;
    if (!affine(index).known || !index_in_bounds(bound(index), size) || (bound(index).int_lo < 0 && !wraps)) return kNoLow;
    LowAffine term = affine(index);
    if (wraps)
      term.uniform = low_.add_op(TileOp::kAddL, TileType::kInt64, term.uniform, low_.int_const(size, TileType::kInt64));
    offset = affine_sum(offset, affine_product(term, view.strides()[axis]), false);
  }
  const TileOp op = type == TileType::kFloat   ? TileOp::kStridedF
                    : type == TileType::kInt32 ? TileOp::kStridedI
                                               : TileOp::kStridedL;
  return low_.add({.op = op,
                   .type = type,
                   .value_class = affine_class(offset.lane_step, offset.row_step),
                   .a = offset.uniform,
                   .lane_step = offset.lane_step,
                   .row_step = offset.row_step,
                   .buffer = add_buffer(buffer, view.rank())});
}

LowId Lowering::lower_load(NodeId id) {
  const Buffer& buffer = graph_->buffer((*graph_)[id].buffers[0]);
  const std::int16_t entry = add_buffer(buffer, buffer.shape().rank());
  const TileType type = load_type(buffer);
  const auto indices = graph_->args(id);
  if (buffer.view().numel() == 0) {  // nothing to read; the indices report themselves if an element is visible
    for (std::size_t axis = 0; axis < indices.size(); ++axis) lower_index(indices[axis], buffer, static_cast<int>(axis));
    return type == TileType::kFloat ? float_const(0) : low_.int_const(0, type);
  }
  if (const LowId strided = strided_load(indices, buffer, type); strided != kNoLow) return strided;
  const LowId offset = gather_offset(indices, buffer);
  const bool narrow = is_narrow(offset);
  const TileOp op = type == TileType::kFloat   ? (narrow ? TileOp::kGatherIntF : TileOp::kGatherLongF)
                    : type == TileType::kInt32 ? (narrow ? TileOp::kGatherIntI : TileOp::kGatherLongI)
                                               : (narrow ? TileOp::kGatherIntL : TileOp::kGatherLongL);
  return low_.add({.op = op,
                   .type = type,
                   .value_class = low_[offset].value_class,
                   .a = offset,
                   .buffer = entry});
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
  const LowId a = low_.as_type(gather_offset(args.first(split), first), TileType::kInt64);
  const LowId b = dot ? low_.as_type(gather_offset(args.subspan(split), second), TileType::kInt64) : kNoLow;
  if (first.view().numel() == 0 || second.view().numel() == 0)
    return is_float ? float_const(0) : low_.as_type(low_.int_const(0, TileType::kInt64), int_type(id));
  LowNode chain{.op = dot ? (is_float ? TileOp::kDotF : TileOp::kDotL) : (is_float ? TileOp::kSumF : TileOp::kSumL),
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
