// A small transformer with random weights: everything except attention over the cache. Each row
// (token) is computed on its own in one order, so its bits do not depend on other rows.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace engine {

struct ModelSizes {
  std::int64_t vocabulary = 96, width = 48, layers = 2;
  std::int64_t q_heads = 4, kv_heads = 2, head_dim = 16, hidden = 96;
};

using Rows = std::vector<float>;  // row-major, [tokens, ...]

class Model {
 public:
  explicit Model(const ModelSizes& sizes, std::uint64_t seed);

  const ModelSizes& sizes() const { return sizes_; }

  // [tokens, width]
  Rows embed(std::span<const std::int64_t> ids) const;
  // What attention of a layer needs of x: queries [tokens, q_heads, head_dim], keys and values.
  struct Projections {
    Rows q, k, v;
  };
  Projections project(std::int64_t layer, const Rows& x) const;
  // Adds the result of attention, [tokens, q_heads, head_dim], and the layer's perceptron, to x.
  void finish_layer(std::int64_t layer, const Rows& attention, Rows& x) const;
  // Logits of one row of x.
  Rows logits(const Rows& x, std::size_t row) const;

 private:
  struct Layer {
    Rows q, k, v, out, up, down;  // [in, out] each
  };

  ModelSizes sizes_;
  Rows embedding_, head_;
  std::vector<Layer> layers_;
};

}  // namespace engine
