// Shards: where pieces are, and how tensors are cut and joined. Context_parallel layer.
#include <algorithm>
#include <cstring>
#include <utility>

#include "quire/context_parallel.h"
#include "quire/error.h"
#include "runtime/ceil_div.h"
#include "runtime/check_size.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"
#include "tensor/convert.h"

namespace quire::context_parallel {
namespace {

constexpr std::int64_t kMostLength = std::int64_t{1} << 40;

void check_tokens(const char* where, const ConstTensorView& view, std::int64_t axis,
                  std::int64_t tokens) {
  if (axis < -static_cast<std::int64_t>(view.rank()) ||
      axis >= static_cast<std::int64_t>(view.rank()))
    fail(ErrorKind::index, where, "a tensor of rank {} has no axis {}", view.rank(), axis);
  if (view.dim(axis) != tokens)
    fail(ErrorKind::value, where, "axis {} must have the {} tokens of the shards; got {}", axis,
         tokens, to_string(view.shape()));
}

// Rows [at, at + n) of `axis` of row-major memory, element by element of the axes before it.
void put(const ConstTensorView& part, std::int64_t axis, std::int64_t at, const TensorView& to) {
  if (part.numel() == 0) return;
  const TensorView target = to.slice(axis, at, at + part.dim(axis));
  const Tensor rows = contiguous(part);
  std::int64_t outer = 1, inner = dtype_size(to.dtype());
  const auto axis_at = static_cast<std::size_t>(axis < 0 ? axis + std::int64_t(to.rank()) : axis);
  for (std::size_t i = 0; i < to.rank(); ++i) (i < axis_at ? outer : inner) *= part.shape()[i];
  const std::int64_t step = inner / part.dim(axis) * to.dim(axis);
  for (std::int64_t i = 0; i < outer; ++i)
    std::memcpy(static_cast<char*>(target.data()) + i * step,
                static_cast<const char*>(rows.data()) + i * inner, static_cast<std::size_t>(inner));
}

}  // namespace

Shards::Shards(std::int64_t length, int ranks, std::int64_t piece_length, std::vector<int> owners)
    : length_(length), piece_length_(piece_length), ranks_(ranks), owners_(std::move(owners)) {
  check_size("Shards", "the length", length, 0, kMostLength);
  check_size("Shards", "the number of ranks", ranks, 1, 1 << 20);
  check_size("Shards", "piece_length", piece_length, kPieceUnit, kMostLength);
  if (piece_length % kPieceUnit != 0)
    fail(ErrorKind::value, "Shards", "piece_length must be a multiple of {}; got {}", kPieceUnit,
         piece_length);
  if (pieces() != ceil_div(length, piece_length))
    fail(ErrorKind::value, "Shards", "{} tokens in pieces of {} need {} owners; got {}", length,
         piece_length, ceil_div(length, piece_length), pieces());
  tokens_.resize(static_cast<std::size_t>(ranks));
  for (std::int64_t i = 0; i < pieces(); ++i) {
    const int owner = owners_[static_cast<std::size_t>(i)];
    if (owner < 0 || owner >= ranks)
      fail(ErrorKind::value, "Shards", "the owner of piece {} must be one of {} ranks; got {}", i,
           ranks, owner);
    place_.push_back(tokens_[static_cast<std::size_t>(owner)]);
    tokens_[static_cast<std::size_t>(owner)] += piece(i).size();
  }
}

Range Shards::piece(std::int64_t index) const {
  return {index * piece_length_, std::min((index + 1) * piece_length_, length_)};
}

std::int64_t Shards::tokens(int rank) const {
  check_size("Shards", "rank", rank, 0, ranks_ - 1);
  return tokens_[static_cast<std::size_t>(rank)];
}

std::vector<Range> Shards::ranges(int rank) const {
  check_size("Shards", "rank", rank, 0, ranks_ - 1);
  std::vector<Range> found;
  for (std::int64_t i = 0; i < pieces(); ++i) {
    if (owners_[static_cast<std::size_t>(i)] != rank) continue;
    if (!found.empty() && found.back().end == piece(i).begin)
      found.back().end = piece(i).end;
    else
      found.push_back(piece(i));
  }
  return found;
}

std::vector<std::int64_t> Shards::positions(int rank) const {
  std::vector<std::int64_t> found;
  for (const Range& range : ranges(rank))
    for (std::int64_t i = range.begin; i < range.end; ++i) found.push_back(i);
  return found;
}

Tensor shard(const ConstTensorView& whole, const Shards& shards, int rank, std::int64_t axis) {
  const FloatEnv float_env;
  check_tokens("shard", whole, axis, shards.length());
  Shape shape = whole.shape();
  shape[static_cast<std::size_t>(axis < 0 ? axis + std::int64_t(whole.rank()) : axis)] =
      shards.tokens(rank);
  Tensor made = Tensor::empty(shape, whole.dtype());
  std::int64_t at = 0;
  for (const Range& range : shards.ranges(rank)) {
    put(whole.slice(axis, range.begin, range.end), axis, at, made.view());
    at += range.size();
  }
  return made;
}

Tensor unshard(const ConstTensorView& mine, const Shards& shards, Communicator& group,
               std::int64_t axis) {
  const FloatEnv float_env;
  if (group.size() != shards.ranks())
    fail(ErrorKind::value, "unshard", "shards for {} ranks in a group of {}", shards.ranks(),
         group.size());
  check_tokens("unshard", mine, axis, shards.tokens(group.rank()));
  const auto axis_at = static_cast<std::size_t>(axis < 0 ? axis + std::int64_t(mine.rank()) : axis);
  Shape shape = mine.shape();
  shape[axis_at] = shards.length();
  Tensor made = Tensor::empty(shape, mine.dtype());
  const std::size_t element = dtype_size(mine.dtype());
  // All ranks send as much as the one with the most tokens.
  std::int64_t most = 0;
  for (int rank = 0; rank < shards.ranks(); ++rank) most = std::max(most, shards.tokens(rank));
  shape[axis_at] = most;
  const std::size_t bytes = static_cast<std::size_t>(element_count(shape)) * element;
  std::vector<std::byte> own(bytes), all(bytes * static_cast<std::size_t>(shards.ranks()));
  copy_elements(mine, mine.dtype(), own.data());
  group.all_gather(own, all);
  for (int rank = 0; rank < shards.ranks(); ++rank) {
    shape[axis_at] = shards.tokens(rank);
    if (element_count(shape) == 0) continue;
    const ConstTensorView part(all.data() + static_cast<std::size_t>(rank) * bytes, mine.dtype(),
                               shape);
    std::int64_t at = 0;
    for (const Range& range : shards.ranges(rank)) {
      put(part.slice(axis, at, at + range.size()), axis, range.begin, made.view());
      at += range.size();
    }
  }
  return made;
}

}  // namespace quire::context_parallel
