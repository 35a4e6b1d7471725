// Score mods that read trainable buffers, one per way their gradients are summed up. Benchmarks
// only.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "quire/mod.h"
#include "quire/tensor.h"

namespace quire::bench {

inline const std::vector<std::string>& gradient_mod_names() {
  static const std::vector<std::string> names = {
      "bias[h]",   "slopes[h]",        "table[q-kv]",      "clamped table", "row[kv]",
      "pos[q,kv]", "full[b,h,q,kv]",   "w[type[b,q,kv]]",  "w[order[q]]",   "nested a[i[j[q,kv]]]",
      "dot",       "score * scale[h]", "softcap + bias[h]"};
  return names;
}

/// `name` out of gradient_mod_names(); `length` queries and keys.
inline ScoreMod gradient_mod(const std::string& name, std::int64_t heads, std::int64_t length) {
  const auto wanted = [](const Shape& shape, const char* buffer) {
    Tensor values(shape, DType::f32);
    for (std::int64_t i = 0; i < values.numel(); ++i)
      values.data_as<float>()[i] = static_cast<float>(i * 7919 % 1000) * 1e-4f;
    return Buffer(values, {.name = buffer, .wants_gradient = true});
  };
  const auto integers = [](const Shape& shape, std::int64_t below, const char* buffer) {
    Tensor values(shape, DType::i32);
    for (std::int64_t i = 0; i < values.numel(); ++i)
      values.data_as<std::int32_t>()[i] = static_cast<std::int32_t>(i * 7919 % 104729 % below);
    return Buffer(values, {.name = buffer});
  };
  const auto parsed = [](const char* text, const std::vector<Buffer>& buffers) {
    NamedBuffers named;
    for (const Buffer& buffer : buffers) named.emplace_back(buffer.name(), buffer);
    return ScoreMod::parse(text, named);
  };
  if (name == "bias[h]") return parsed("score + bias[h]", {wanted({heads}, "bias")});
  if (name == "slopes[h]")
    return parsed("score + slopes[h] * (kv_idx - q_idx)", {wanted({heads}, "slopes")});
  if (name == "table[q-kv]") {
    const std::string text = "score + table[q_idx - kv_idx + " + std::to_string(length - 1) + "]";
    return parsed(text.c_str(), {wanted({2 * length - 1}, "table")});
  }
  if (name == "clamped table")
    return parsed("score + table[h, clamp(kv_idx - q_idx, -128, 128) + 128]",
                  {wanted({heads, 257}, "table")});
  if (name == "row[kv]") return parsed("score + row[h, kv_idx]", {wanted({heads, length}, "row")});
  if (name == "pos[q,kv]")
    return parsed("score + pos[q_idx, kv_idx]", {wanted({length, length}, "pos")});
  if (name == "full[b,h,q,kv]")
    return parsed("score + full[b, h, q_idx, kv_idx]",
                  {wanted({1, heads, length, length}, "full")});
  if (name == "w[type[b,q,kv]]")
    return parsed("score + w[type[b, q_idx, kv_idx]]",
                  {wanted({64}, "w"), integers({1, length, length}, 64, "type")});
  if (name == "w[order[q]]")
    return parsed("score + w[order[q_idx]]", {wanted({64}, "w"), integers({length}, 64, "order")});
  if (name == "nested a[i[j[q,kv]]]")
    return parsed("score + a[i[j[q_idx, kv_idx]]]",
                  {wanted({10000}, "a"), integers({1000}, 10000, "i"),
                   integers({length, length}, 1000, "j")});
  if (name == "dot")
    return parsed("score + dot(q_rope[h, q_idx], k_rope[kv_idx])",
                  {wanted({heads, length, 32}, "q_rope"), wanted({length, 32}, "k_rope")});
  if (name == "score * scale[h]") return parsed("score * scale[h]", {wanted({heads}, "scale")});
  return parsed("20 * tanh((score + bias[h]) / 20)", {wanted({heads}, "bias")});
}

}  // namespace quire::bench
