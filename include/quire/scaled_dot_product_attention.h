// scaled_dot_product_attention: attention with a mask given as a tensor or a rule, causal or not,
// with dropout, over dense and jagged batches; and the choice of a backend, which can explain why
// it was not chosen. Public; sdpa layer.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "quire/attention.h"
#include "quire/executor.h"
#include "quire/export.h"
#include "quire/mod.h"
#include "quire/tensor.h"

namespace quire {

/// FLASH and EFFICIENT are two names for the same kernels and never differ in a bit. MATH is the
/// f64 reference, one element at a time.
enum class SDPBackend : std::int8_t {
  kError = -1,
  kMath = 0,
  kFlashAttention = 1,
  kEfficientAttention = 2,
};

/// Which corner of the scores the diagonal of is_causal starts in.
enum class CausalAlignment : std::uint8_t {
  kTopLeft,      // q_idx >= kv_idx, as torch
  kBottomRight,  // the last query sees the last key: q_idx + kv_len - q_len >= kv_idx
};

/// Nothing; a tensor that broadcasts to [batch, q_heads, q_len, kv_len], bool (true: visible) or
/// float (added to the scaled scores); or a rule.
using AttentionMask = std::variant<std::monostate, ConstTensorView, MaskMod>;

struct SdpaOptions {
  AttentionMask attn_mask = {};
  double dropout_p = 0;    // in 0..1
  std::uint64_t seed = 0;  // of the dropout
  bool is_causal = false;  // not together with attn_mask
  CausalAlignment alignment = CausalAlignment::kTopLeft;
  std::optional<double> scale = {};
  bool enable_gqa = false;
  // As in AttentionOptions; for dense calls the B of key_indices counts all leading axes.
  std::optional<Buffer> sinks = {};
  std::optional<ConstTensorView> key_indices = {};
  std::optional<ScoreMod> weight_mod = {};  // `lse` is then the sum of a row's weights
  Normalize normalize = Normalize::kNone;
  std::optional<Rope> rope = {};
  /// The backends that may be used; the order of preference is FLASH, EFFICIENT, MATH.
  std::vector<SDPBackend> backends = {SDPBackend::kFlashAttention, SDPBackend::kEfficientAttention,
                                      SDPBackend::kMath};
  Executor* executor = nullptr;
  /// Receives the natural log of the row sums, which the backward pass needs, unless null; of the
  /// keys alone, without sinks. [..., Hq, L], f32 (f64 for f64 calls); jagged: [total, heads] or
  /// [heads, total], in q's order.
  Tensor* lse = nullptr;
  /// For dense calls in half precision: return the f32 output before rounding. As `out` of the
  /// backward pass it makes the gradient of attn_mask more exact.
  bool wide_out = false;
};

/// q [B, Hq, L, E], k [B, Hkv, S, E], v [B, Hkv, S, Ev]: one dtype, any strides, any number of
/// leading axes including none ([L, E] to [..., H, L, E]). Batch and heads of size 1 are broadcast;
/// with enable_gqa, Hq may be a multiple of Hkv. Returns [..., Hq, L, Ev] in q's dtype. Dropout:
/// weights are dropped with probability dropout_p and the others divided by 1 - dropout_p after the
/// row sum was taken; the choice depends only on (seed, b, h, q_idx, kv_idx), b counting all
/// leading axes, the last one fastest. A row that sees nothing gives 0. Inputs whose leading axes
/// cannot be merged by strides are copied. Throws Error naming what does not fit (kind runtime for
/// dtypes that differ) and, if no backend is left, the reasons of each (kind runtime).
QUIRE_API Tensor scaled_dot_product_attention(const ConstTensorView& q, const ConstTensorView& k,
                                              const ConstTensorView& v,
                                              const SdpaOptions& options = {});

/// The same over jagged batches. Mask tensors are rejected: give a rule.
QUIRE_API Tensor scaled_dot_product_attention(const Jagged& q, const Jagged& k, const Jagged& v,
                                              const SdpaOptions& options = {});

/// What the forward pass read and returned, and the gradient of its result. Shapes as above.
struct SdpaBackwardInputs {
  ConstTensorView q, k, v;
  ConstTensorView out, lse;  // from the forward pass; SdpaOptions::lse
  ConstTensorView d_out;     // as out, any float dtype
};
struct JaggedSdpaBackwardInputs {
  Jagged q, k, v;
  ConstTensorView out, lse;  // in q's order
  ConstTensorView d_out;
};

/// WantedGradients under its name in 0.1.
struct [[deprecated("WantedGradients says the same")]] SdpaGradientsWanted {
  WantedGradients inputs = {};
  bool attn_mask = false;

  operator WantedGradients() const {  // NOLINT: converts
    WantedGradients wanted = inputs;
    wanted.attn_mask = attn_mask;
    return wanted;
  }
};

/// Each has the shape and dtype of its input; axes that were broadcast are summed.
struct SdpaGradients {
  std::optional<Tensor> q = {}, k = {}, v = {}, attn_mask = {};  // the requested ones
  /// For buffers with wants_gradient: the weight mod's, those of a rule (which are 0), the sinks.
  std::vector<BufferGradient> buffers = {};
};

/// `options` as in the forward call; the dropout is replayed from its seed. Always uses the fused
/// kernels, whatever options.backends says. Throws Error as the forward pass, and if the gradient
/// of attn_mask is wanted but it is not a tensor of floats.
QUIRE_API SdpaGradients scaled_dot_product_attention_backward(const SdpaBackwardInputs& inputs,
                                                              const SdpaOptions& options = {},
                                                              const WantedGradients& wanted = {});
QUIRE_API SdpaGradients scaled_dot_product_attention_backward(
    const JaggedSdpaBackwardInputs& inputs, const SdpaOptions& options = {},
    const WantedGradients& wanted = {});

/// The backend a call would use; kError if none is left or the call is invalid.
QUIRE_API SDPBackend choose_backend(const ConstTensorView& q, const ConstTensorView& k,
                                    const ConstTensorView& v, const SdpaOptions& options = {});
QUIRE_API SDPBackend choose_backend(const Jagged& q, const Jagged& k, const Jagged& v,
                                    const SdpaOptions& options = {});

/// Every reason why a backend cannot compute this call, as sentences; empty if it can. Not being in
/// options.backends is one. For an invalid call, the text of its error.
QUIRE_API std::vector<std::string> why_not(SDPBackend backend, const ConstTensorView& q,
                                           const ConstTensorView& k, const ConstTensorView& v,
                                           const SdpaOptions& options = {});
QUIRE_API std::vector<std::string> why_not(SDPBackend backend, const Jagged& q, const Jagged& k,
                                           const Jagged& v, const SdpaOptions& options = {});

}  // namespace quire
