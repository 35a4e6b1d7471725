// Plain loops over dense bools. Tests only.
#include "tests/support/torch_block_mask.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

namespace quire::testing {
namespace {

// 0 or 1 per block.
struct BlockBits {
  std::int64_t batch, heads, rows, columns;
  std::vector<std::int32_t> bits;

  std::int32_t& at(std::int64_t plane, std::int64_t row, std::int64_t column) {
    return bits[static_cast<std::size_t>((plane * rows + row) * columns + column)];
  }
};

BlockBits transposed(BlockBits from) {
  BlockBits result{from.batch, from.heads, from.columns, from.rows, {}};
  result.bits.resize(from.bits.size());
  for (std::int64_t p = 0; p < from.batch * from.heads; ++p)
    for (std::int64_t r = 0; r < from.rows; ++r)
      for (std::int64_t c = 0; c < from.columns; ++c) result.at(p, c, r) = from.at(p, r, c);
  return result;
}

struct Ordered {
  Tensor num_blocks, indices;
};

Ordered ordered(const BlockBits& from) {
  std::vector<std::int32_t> num, indices;
  const auto width = static_cast<std::size_t>(from.columns);
  for (std::int64_t row = 0; row < from.batch * from.heads * from.rows; ++row) {
    const std::int32_t* bits = from.bits.data() + static_cast<std::size_t>(row) * width;
    num.push_back(std::accumulate(bits, bits + width, 0));
    std::vector<std::int32_t> order(width);
    std::iota(order.begin(), order.end(), 0);
    // A stable argsort, descending: listed ones first, both parts ascending.
    std::sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
      return bits[a] != bits[b] ? bits[a] > bits[b] : a < b;
    });
    indices.insert(indices.end(), order.begin(), order.end());
  }
  return {Tensor::from(num, {from.batch, from.heads, from.rows}),
          Tensor::from(indices, {from.batch, from.heads, from.rows, from.columns})};
}

// Visible elements per block.
BlockBits visible_counts(const Tensor& dense, BlockSize size) {
  const std::int64_t q_len = dense.dim(2), kv_len = dense.dim(3);
  BlockBits counts{dense.dim(0),
                   dense.dim(1),
                   (q_len + size.q - 1) / size.q,
                   (kv_len + size.kv - 1) / size.kv,
                   {}};
  counts.bits.resize(
      static_cast<std::size_t>(counts.batch * counts.heads * counts.rows * counts.columns));
  const bool* visible = dense.data_as<bool>();
  for (std::int64_t p = 0; p < counts.batch * counts.heads; ++p)
    for (std::int64_t q = 0; q < q_len; ++q)
      for (std::int64_t kv = 0; kv < kv_len; ++kv)
        counts.at(p, q / size.q, kv / size.kv) += visible[(p * q_len + q) * kv_len + kv];
  return counts;
}

template <class Is>
BlockBits where(BlockBits counts, Is is) {
  for (std::int32_t& count : counts.bits) count = is(count);
  return counts;
}

bool same(const std::optional<Tensor>& a, const std::optional<Tensor>& b) {
  if (!a.has_value() || !b.has_value()) return a.has_value() == b.has_value();
  return a->shape() == b->shape() && a->dtype() == b->dtype() &&
         std::memcmp(a->data(), b->data(),
                     static_cast<std::size_t>(a->numel()) * dtype_size(a->dtype())) == 0;
}

}  // namespace

TorchBlockMask torch_block_mask(const Tensor& dense, BlockSize block_size,
                                bool separate_full_blocks) {
  const BlockBits counts = visible_counts(dense, block_size);
  const std::int64_t all = block_size.q * block_size.kv;
  const BlockBits full = where(counts, [&](std::int32_t count) { return count == all; });
  const BlockBits any = where(counts, [&](std::int32_t count) { return count > 0; });
  const BlockBits partial =
      separate_full_blocks
          ? where(counts, [&](std::int32_t count) { return count > 0 && count < all; })
          : any;
  TorchBlockMask result;
  const auto [kv_num, kv] = ordered(partial);
  const auto [q_num, q] = ordered(transposed(partial));
  result.kv_num_blocks = kv_num;
  result.kv_indices = kv;
  result.q_num_blocks = q_num;
  result.q_indices = q;
  result.dense = Tensor::from(any.bits, {any.batch, any.heads, any.rows, any.columns});
  if (!separate_full_blocks) return result;
  const auto [full_kv_num, full_kv] = ordered(full);
  const auto [full_q_num, full_q] = ordered(transposed(full));
  result.full_kv_num_blocks = full_kv_num;
  result.full_kv_indices = full_kv;
  result.full_q_num_blocks = full_q_num;
  result.full_q_indices = full_q;
  return result;
}

std::string tensor_text(const std::optional<Tensor>& tensor) {
  if (!tensor.has_value()) return "none";
  const ConstTensorView flat = tensor->view().reshape({tensor->numel()});
  std::vector<std::int64_t> values;
  for (std::int64_t i = 0; i < flat.numel(); ++i) values.push_back(flat.load_int({i}));
  return fmt::format("{} {} {{{}}}", to_string(tensor->shape()), dtype_name(tensor->dtype()),
                     fmt::join(values, ", "));
}

std::string difference(const BlockMask& mask, const TorchBlockMask& torch) {
  struct Pair {
    const char* name;
    std::optional<Tensor> ours, theirs;
  };
  const Pair pairs[] = {
      {"kv_num_blocks", mask.kv_num_blocks(), torch.kv_num_blocks},
      {"kv_indices", mask.kv_indices(), torch.kv_indices},
      {"full_kv_num_blocks", mask.full_kv_num_blocks(), torch.full_kv_num_blocks},
      {"full_kv_indices", mask.full_kv_indices(), torch.full_kv_indices},
      {"q_num_blocks", mask.q_num_blocks(), torch.q_num_blocks},
      {"q_indices", mask.q_indices(), torch.q_indices},
      {"full_q_num_blocks", mask.full_q_num_blocks(), torch.full_q_num_blocks},
      {"full_q_indices", mask.full_q_indices(), torch.full_q_indices},
      {"to_dense", mask.to_dense(), torch.dense},
  };
  for (const Pair& pair : pairs) {
    if (same(pair.ours, pair.theirs)) continue;
    return fmt::format("{} differ: {} and {}", pair.name, tensor_text(pair.ours),
                       tensor_text(pair.theirs));
  }
  return "";
}

}  // namespace quire::testing
