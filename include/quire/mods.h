// The library of ready-made mods: common masks and score mods, each a formula (which can be
// printed, combined, differentiated and proved like any other), and the gallery: more mods kept as
// text, with adjustable sizes. docs/mods.md lists them with their references. Contains no attention
// and draws nothing. Public; mods layer.
//
// Positions are absolute: q_idx is the token's place in its sequence. Every function allocates the
// formula it returns and the tables it is said to copy; all are thread safe; all throw Error before
// anything has changed. A table that is read in place is read at each run; a position beyond its
// end is an error of that run (docs/formula.md, Faults).
#pragma once
#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "quire/buffer.h"
#include "quire/export.h"
#include "quire/formula.h"
#include "quire/mod.h"
#include "quire/tensor.h"

namespace quire {

/// Everything is visible.
QUIRE_API MaskMod noop_mask();

/// Visible where all of them are; without masks, everything.
QUIRE_API MaskMod and_masks(std::span<const MaskMod> masks);
inline MaskMod and_masks(std::initializer_list<MaskMod> masks) {
  return and_masks(std::span(masks.begin(), masks.size()));
}
template <class... Masks>
  requires(std::convertible_to<Masks, MaskMod> && ...)
MaskMod and_masks(Masks&&... masks) {
  return and_masks(std::initializer_list<MaskMod>{MaskMod(std::forward<Masks>(masks))...});
}

/// Visible where any of them is; without masks, nothing.
QUIRE_API MaskMod or_masks(std::span<const MaskMod> masks);
inline MaskMod or_masks(std::initializer_list<MaskMod> masks) {
  return or_masks(std::span(masks.begin(), masks.size()));
}
template <class... Masks>
  requires(std::convertible_to<Masks, MaskMod> && ...)
MaskMod or_masks(Masks&&... masks) {
  return or_masks(std::initializer_list<MaskMod>{MaskMod(std::forward<Masks>(masks))...});
}

namespace mods {

/// A table passed to a mod: a Tensor (shared), a vector (copied), or a Buffer, which brings its own
/// name and, for a learnt table, wants_gradient.
class QUIRE_API Table {
 public:
  Table(Buffer buffer) : buffer_(std::move(buffer)) {}          // NOLINT: any of these is a table
  Table(Tensor tensor) : buffer_(Buffer(std::move(tensor))) {}  // NOLINT

  template <Element T>
  Table(const std::vector<T>& values) : buffer_(Buffer(values)) {}  // NOLINT

  const Buffer& buffer() const { return buffer_; }

 private:
  Buffer buffer_;
};

// Masks.

/// q_idx >= kv_idx: a token sees itself and what came before it.
QUIRE_API MaskMod causal();

/// Causal, with the last of q_len queries at the last of kv_len keys: q_idx + kv_len - q_len >=
/// kv_idx. For queries that count from 0 after a cache. Lengths are at least 0.
QUIRE_API MaskMod causal_bottom_right(std::int64_t q_len, std::int64_t kv_len);

/// The last `size` tokens, the query's own included; size is at least 1.
QUIRE_API MaskMod sliding_window(std::int64_t size);
/// `left` tokens before and `right` after the query's own, which is visible too; both at least 0.
/// sliding_window(n) is sliding_window(n - 1, 0).
QUIRE_API MaskMod sliding_window(std::int64_t left, std::int64_t right);

/// Tokens of the same document. ids: integers, [len] or [batch, len] (batch 1 serves all), read in
/// place; ascending ids give the best proofs. A negative id is padding: it sees nothing and is not
/// seen.
QUIRE_API MaskMod document(const Table& ids);
/// The same with separate ids for queries [q_len] and keys [kv_len], or [batch, ..] each.
QUIRE_API MaskMod document(const Table& q_ids, const Table& kv_ids);
/// Document i is offsets[i] .. offsets[i + 1] - 1. offsets: integers [documents + 1], starting at
/// 0, never decreasing; copied into ids, i32 [length]. `length` is that of the sequence, by default
/// and at least the last offset; tokens after the last document are padding as above.
QUIRE_API MaskMod document_from_offsets(const Table& offsets, std::int64_t length = -1);

/// All tokens see the first `length` tokens; the rest is causal. length is at least 0.
QUIRE_API MaskMod prefix_lm(std::int64_t length);
/// lengths: integers [batch], read in place.
QUIRE_API MaskMod prefix_lm(const Table& lengths);

/// The first `kv_length` keys; the rest is padding. At least 0.
QUIRE_API MaskMod padding(std::int64_t kv_length);
/// kv_lengths: integers [batch], read in place.
QUIRE_API MaskMod padding(const Table& kv_lengths);

/// Causal; every branch sees the first prefix_length tokens, other tokens are seen only within
/// their branch. ids as in document(), for all positions; those of the prefix do not matter. With
/// offsets: causal() & (attention_sink(prefix_length) | document_from_offsets(offsets)).
QUIRE_API MaskMod shared_prefix(std::int64_t prefix_length, const Table& ids);

/// Drafts of speculative decoding: after `context` tokens, which are causal and visible to the
/// whole tree, token context + i sees itself and its ancestors. parents: integers [n] or [batch,
/// n], each the index of a tree token or -1 for a root, in any order, without cycles; copied into
/// two i32 tables of that shape. O(n) time and memory.
QUIRE_API MaskMod tree(const Table& parents, std::int64_t context = 0);
/// contexts: integers [batch], read in place.
QUIRE_API MaskMod tree(const Table& parents, const Table& contexts);

/// All queries see the first `count` keys (at least 0); to be combined with another mask by `|`.
QUIRE_API MaskMod attention_sink(std::int64_t count);

/// Causal; the first `sinks` tokens (at least 0) and the last `window` (at least 1), the query's
/// own included.
QUIRE_API MaskMod streaming(std::int64_t sinks, std::int64_t window);

/// Tokens in the same chunk of `size` (at least 1), counted from 0; optionally causal within it.
QUIRE_API MaskMod chunked(std::int64_t size, bool is_causal = true);

// Score mods.

/// score + slopes[h] * (kv_idx - q_idx), with alibi_slopes(heads).
QUIRE_API ScoreMod alibi(std::int64_t heads);
/// slopes: floats [heads], read in place.
QUIRE_API ScoreMod alibi(const Table& slopes);
/// The paper's slopes: 2^(-8/heads), its square, its cube, ... for a power of two; otherwise those
/// of the next lower power of two, then every other one of twice that power. heads is at least 1.
QUIRE_API std::vector<float> alibi_slopes(std::int64_t heads);

/// cap * tanh(score / cap): scores stay within -cap .. cap. cap is positive and finite.
QUIRE_API ScoreMod softcap(double cap);

/// score + table[h, kv_idx - q_idx + max - 1]; distances of max and more use the ends of the table.
/// table: floats [2 * max - 1] or [heads, 2 * max - 1] (heads 1 serves all), read in place.
QUIRE_API ScoreMod relative_bias(const Table& table);

/// score + bias[b, h, q_idx, kv_idx]. bias: floats [q_len, kv_len], [heads, q_len, kv_len] or
/// [batch, heads, q_len, kv_len] (heads 1 and batch 1 serve all), read in place.
QUIRE_API ScoreMod bias_2d(const Table& bias);

// The gallery.

/// The sizes an entry of the gallery is made for. All at least 1.
struct GallerySizes {
  std::int64_t q_len = 1;
  std::int64_t kv_len = 1;
  std::int64_t heads = 1;
  std::int64_t batch = 1;

  friend bool operator==(const GallerySizes&, const GallerySizes&) = default;
};

/// A mod kept as text, or one of the functions above, made for sizes of the caller's
/// choice. Its buffers are filled with numbers that show the pattern, not those of a
/// model.
struct QUIRE_API GalleryEntry {
  enum class Kind : std::uint8_t { kMask, kScore };

  /// A table that the formula reads: "slopes", dtype, sizes as texts ("heads"), and the formula of
  /// an element at (b, h, q_idx, kv_idx), with the last axis as kv_idx.
  struct Table {
    std::string name;
    DType dtype;
    std::vector<std::string> shape;
    std::string text;
  };
  /// A named number in the texts: W = 32, or side = int(sqrt(q_len)).
  struct Parameter {
    std::string name;
    std::string text;
  };

  std::string name;
  Kind kind = Kind::kMask;
  std::string description;  // one line
  std::string reference;
  GallerySizes sizes;                 // what it is drawn at
  std::vector<Parameter> parameters;  // each may use q_len, kv_len, heads, batch and earlier ones
  std::vector<Table> tables;          // each may use the parameters and earlier tables
  // For one of the functions above, the call: "sliding_window(size)". Empty for those kept as text.
  std::string function;
  // May use all names; for a function, its formula at the sizes above.
  std::string text;

  /// The whole text for these sizes, with the parameters replaced by numbers: what MaskMod::parse
  /// or ScoreMod::parse takes together with buffers(at).
  std::string full_text(const GallerySizes& at) const;
  /// The tables with their contents.
  NamedBuffers buffers(const GallerySizes& at) const;

  /// At its own sizes, or at others. Throws Error for a size below 1 and for the wrong kind.
  MaskMod mask_mod() const { return mask_mod(sizes); }
  MaskMod mask_mod(const GallerySizes& at) const;
  ScoreMod score_mod() const { return score_mod(sizes); }
  ScoreMod score_mod(const GallerySizes& at) const;
};

/// All entries, the functions above first; read once, valid until the program ends.
QUIRE_API std::span<const GalleryEntry> gallery();

/// The entry of that name. Throws Error, listing all names, for an unknown one.
QUIRE_API const GalleryEntry& gallery_entry(std::string_view name);

/// A table written as text, with its name: "doc = 1, 1, 2" (i64, or f32 with a point), "doc =
/// i32[kv_len]: kv_idx // 512" (filled like the tables of the gallery, for these sizes) or "doc =
/// i32[4096]" (declared, no contents). Returns nothing if the text looks like none of these; throws
/// Error for an unknown dtype and for a formula that cannot be parsed or evaluated.
QUIRE_API std::optional<std::pair<std::string, Buffer>> read_table(std::string_view text,
                                                                   const GallerySizes& at);

}  // namespace mods
}  // namespace quire
