// Plain loops in a fixed order: sums over inputs are chains, first input first.
#include "model.h"

#include <cmath>
#include <random>

namespace engine {
namespace {

// rows [n, in] times weights [in, out].
Rows multiply(const Rows& rows, const Rows& weights, std::int64_t in) {
  const std::size_t width = in;
  const std::size_t n = rows.size() / width, out = weights.size() / width;
  Rows result(n * out);
  for (std::size_t row = 0; row < n; ++row) {
    float* const to = result.data() + row * out;
    for (std::size_t i = 0; i < width; ++i) {
      const float factor = rows[row * width + i];
      const float* const weight = weights.data() + i * out;
      for (std::size_t j = 0; j < out; ++j) to[j] += factor * weight[j];
    }
  }
  return result;
}

// Each row divided by its root mean square.
Rows normalise(std::span<const float> rows, std::int64_t width) {
  Rows result(rows.begin(), rows.end());
  const std::size_t size = width;
  for (std::size_t begin = 0; begin < result.size(); begin += size) {
    float sum = 0;
    for (std::size_t i = 0; i < size; ++i) sum += result[begin + i] * result[begin + i];
    const float factor = 1 / std::sqrt(sum / static_cast<float>(size) + 1e-5f);
    for (std::size_t i = 0; i < size; ++i) result[begin + i] *= factor;
  }
  return result;
}

void add(const Rows& rows, Rows& to) {
  for (std::size_t i = 0; i < to.size(); ++i) to[i] += rows[i];
}

}  // namespace

Model::Model(const ModelSizes& sizes, std::uint64_t seed) : sizes_(sizes) {
  std::mt19937_64 random(seed);
  const auto weights = [&](std::int64_t in, std::int64_t out) {
    Rows result(in * out);
    const double scale = 2 / std::sqrt(static_cast<double>(in));
    for (float& one : result)
      one = static_cast<float>((static_cast<double>(random() >> 11) * 0x1p-53 - 0.5) * scale * 2);
    return result;
  };
  const std::int64_t q = sizes.q_heads * sizes.head_dim, kv = sizes.kv_heads * sizes.head_dim;
  embedding_ = weights(sizes.vocabulary, sizes.width);
  for (std::int64_t layer = 0; layer < sizes.layers; ++layer) {
    Layer one;
    one.q = weights(sizes.width, q);
    one.k = weights(sizes.width, kv);
    one.v = weights(sizes.width, kv);
    one.out = weights(q, sizes.width);
    one.up = weights(sizes.width, sizes.hidden);
    one.down = weights(sizes.hidden, sizes.width);
    layers_.push_back(one);
  }
  head_ = weights(sizes.width, sizes.vocabulary);
}

Rows Model::embed(std::span<const std::int64_t> ids) const {
  Rows rows;
  for (const std::int64_t id : ids) {
    const auto begin = embedding_.begin() + id * sizes_.width;
    rows.insert(rows.end(), begin, begin + sizes_.width);
  }
  return rows;
}

Model::Projections Model::project(std::int64_t layer, const Rows& x) const {
  const Layer& weights = layers_[layer];
  const Rows rows = normalise(x, sizes_.width);
  return {multiply(rows, weights.q, sizes_.width), multiply(rows, weights.k, sizes_.width),
          multiply(rows, weights.v, sizes_.width)};
}

void Model::finish_layer(std::int64_t layer, const Rows& attention, Rows& x) const {
  const Layer& weights = layers_[layer];
  add(multiply(attention, weights.out, sizes_.q_heads * sizes_.head_dim), x);
  Rows inner = multiply(normalise(x, sizes_.width), weights.up, sizes_.width);
  for (float& one : inner) one = one > 0 ? one : 0;
  add(multiply(inner, weights.down, sizes_.hidden), x);
}

Rows Model::logits(const Rows& x, std::size_t row) const {
  const std::size_t width = sizes_.width;
  return multiply(normalise(std::span(x).subspan(row * width, width), sizes_.width), head_,
                  sizes_.width);
}

}  // namespace engine
