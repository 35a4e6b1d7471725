// What errors call the functions that users call, where more than one file of this folder raises
// them. Attention layer.
#pragma once

namespace quire::attention::names {

inline constexpr const char* kFlexAttention = "flex_attention";
inline constexpr const char* kFlexAttentionBackward = "flex_attention_backward";
inline constexpr const char* kSdpa = "scaled_dot_product_attention";
inline constexpr const char* kSdpaBackward = "scaled_dot_product_attention_backward";
inline constexpr const char* kAttend = "attend";

}  // namespace quire::attention::names
