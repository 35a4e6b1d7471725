// KVCache: keys and values of many sequences in pages of one pool, for inference engines. It
// manages pages (who owns which) and rows; attention over it is attend() (quire/attend.h), which
// reads its page tables. Public; cache layer.
//
//   KVCache cache({.layers = 32, .kv_heads = 8, .head_dim = 128, .n_pages = 4096});
//   auto [a, found] = cache.create_with_prefix(prompt_ids, tenant);  // `found` tokens are cached
//   const NewTokens step[] = {{a, n - found, ids_of_the_rest}, {b, 1, next_id_of_b}, ...};
//   cache.append(step);                       // once per step: pages, or an error and no change
//   for (layer ...) {
//     cache.write(layer, step, k, v);         // rows of the new tokens, [tokens, kv_heads, dim]
//     attend(cache, layer, sequences, q ...);
//   }
//   cache.release(a);
//
// Layers that differ (in windows, heads, dims) form groups: each group has its own pool of pages,
// and one handle stands for a sequence in all of them.
//
// Every call is all or nothing: one that throws (Error, std::bad_alloc) leaves the cache as it was.
// A call touches only the sequences and pages it concerns: its time does not depend on the pool.
//
// Threads: const members (attend uses them) may be called concurrently; any other call needs
// exclusive access. Different caches share nothing.
#pragma once
#include <compare>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "quire/dtype.h"
#include "quire/export.h"
#include "quire/function_ref.h"
#include "quire/quantize.h"
#include "quire/tensor_view.h"

namespace quire {

/// Marks a missing page in a page table: positions that release_before gave back.
inline constexpr std::int32_t kNoPage = -1;

/// Hash of a page, from its ids and the hash of the page before it (of the salt for a first page).
using PageHash = std::uint64_t (*)(std::uint64_t before,
                                   std::span<const std::int64_t> ids) noexcept;

/// Layers with rows of the same shape whose queries look equally far back.
struct KVLayerGroup {
  std::vector<std::int64_t> layers = {};  // indices in the model; each layer is in one group
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 64;
  std::int64_t v_head_dim = 0;  // 0: as head_dim
  DType dtype = DType::f32;     // f32, f64, bf16 or f16; for what is not coded
  /// How keys and values are stored: as numbers of the dtype, or as codes (quire/kv_format.h) made
  /// when rows are written. Scales that a format shares between tokens are set by set_scales.
  KVFormat k_format = {}, v_format = {};
  /// Values are the first v_head_dim numbers of keys (latent keys): they are not stored separately,
  /// not passed to write, and have the keys' format.
  bool v_in_k = false;
  /// Queries of these layers see the last `window` tokens (0: all of them) and the first
  /// `sink_tokens`. attend applies it; append gives back pages that no query of its tokens or of
  /// later ones can see.
  std::int64_t window = 0;
  std::int64_t sink_tokens = 0;  // only with a window
  std::int64_t n_pages = 0;      // of its pool; 0: the cache's
  friend bool operator==(const KVLayerGroup&, const KVLayerGroup&) = default;
};

struct KVCacheOptions {
  std::int64_t layers = 1;
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 64;
  std::int64_t v_head_dim = 0;   // 0: as head_dim
  DType dtype = DType::f32;      // f32, f64, bf16 or f16
  KVFormat k_format = {};        // see KVLayerGroup
  KVFormat v_format = {};        //
  bool v_in_k = false;           //
  std::int64_t page_size = 16;   // tokens
  std::int64_t n_pages = 0;      // may be 0: then nothing fits
  PageHash page_hash = nullptr;  // by default the library's own; a poor one costs only time
  /// Groups that together have the layers 0, 1, 2, ... Replaces layers, kv_heads, head_dim,
  /// v_head_dim, dtype, formats and v_in_k, which describe a single group of all layers.
  std::vector<KVLayerGroup> groups = {};
};

/// A handle to a sequence of one cache. Handles of another cache and stale ones (of a released
/// sequence) are rejected.
struct SequenceId {
  std::uint64_t cache = 0;
  std::uint32_t slot = 0xffffffff;
  std::uint32_t generation = 0;
  friend auto operator<=>(const SequenceId&, const SequenceId&) = default;
};

/// The tokens that a sequence gains in a step.
struct NewTokens {
  SequenceId sequence;
  std::int64_t count = 1;
  std::span<const std::int64_t> ids = {};  // none, or `count`: full pages can be found by prefix
  /// They may be given up again (speculation): they, and tokens appended after them, can be found
  /// by prefix only after commit() has accepted them.
  bool draft = false;
};

/// What keep() leaves of a sequence: the tokens before `begin`, then those now at `positions`,
/// which ascend from `begin` on.
struct KeptTokens {
  SequenceId sequence;
  std::int64_t begin = 0;
  std::span<const std::int64_t> positions = {};
};

struct CreatedSequence {
  SequenceId sequence;
  std::int64_t found = 0;  // tokens already cached: whole pages
};

/// The page table of a sequence in a group of layers. The row of position p < length is row p %
/// page_size of page pages[p / page_size], unless it was released. Equal page numbers are the same
/// memory, in every layer of the group. Valid until a call changes the sequence.
struct SequenceView {
  std::span<const std::int32_t> pages;  // ceil(length / page_size); kNoPage where released
  std::int64_t begin = 0;               // first position whose keys are still there
  std::int64_t length = 0;
  std::int64_t hole_begin = 0, hole_end = 0;  // positions from hole_begin to hole_end were released
};

/// Of one group of layers, or summed over all of them (except sequences and waste).
struct KVCacheStats {
  std::int64_t sequences = 0;
  std::int64_t live_tokens = 0;    // of all sequences; shared ones count once per sequence
  std::int64_t stored_tokens = 0;  // filled slots of used pages, each counted once
  std::int64_t pages = 0;          // = used + cached + free
  std::int64_t used_pages = 0;     // held by a sequence, reserved ones included
  std::int64_t shared_pages = 0;   // held by more than one sequence
  std::int64_t cached_pages = 0;   // held by none, but found by prefix; reused when no page is free
  std::int64_t free_pages = 0;
  std::int64_t evictions = 0;     // cached pages reused so far
  std::int64_t copied_pages = 0;  // copied on write so far
  double waste = 0;  // share of slots of used pages that hold no token; 0 if there are none
  std::int64_t token_bytes = 0;  // keys and values of a token in all layers, scales included
  std::int64_t bytes = 0;        // of all pages
  std::int64_t used_bytes = 0;   // of used pages
};

/// Receives the next bytes.
using ByteSink = FunctionRef<void(std::span<const std::byte>)>;
/// Fills at least one byte of the span and returns how many it filled; 0: end of
/// input.
using ByteSource = FunctionRef<std::size_t(std::span<std::byte>)>;

struct LoadedSequence {
  SequenceId saved;     // handle in the saved cache
  SequenceId sequence;  // handle in this cache
};

class QUIRE_API KVCache {
 public:
  /// Allocates everything that grows with n_pages; the memory of pages is not touched before they
  /// are used. Throws Error for sizes below 1 (n_pages: 0), a dtype that is not floating, a format
  /// that does not exist or does not fit the head dim, and a pool that does not fit into memory.
  explicit KVCache(const KVCacheOptions& options);
  KVCache(KVCache&&) noexcept;
  KVCache& operator=(KVCache&&) noexcept;
  ~KVCache();

  /// With all defaults filled in. With several groups, kv_heads, head_dim, v_head_dim, dtype,
  /// formats and v_in_k are those of the first, and n_pages is the sum.
  const KVCacheOptions& options() const noexcept;
  /// The groups of layers, at least one, with all defaults filled in.
  std::span<const KVLayerGroup> groups() const noexcept { return options().groups; }
  /// The index of a layer's group. Throws Error for a layer outside the cache.
  std::int64_t group_of(std::int64_t layer) const;

  // --- Sequences -------------------------------------------------------------------------------

  /// A new, empty sequence. Sequences with different salts never share a page by prefix.
  SequenceId create(std::uint64_t salt = 0);
  /// A sequence that begins with the longest cached chain of full pages with exactly
  /// these ids and this salt. A group with a window needs only the pages that the next
  /// token sees. To have a query for the last token, leave it out of `ids`. O(pages of
  /// ids).
  CreatedSequence create_with_prefix(std::span<const std::int64_t> ids, std::uint64_t salt = 0);
  /// How many tokens create_with_prefix would find.
  std::int64_t cached_prefix(std::span<const std::int64_t> ids, std::uint64_t salt = 0) const;
  /// A new sequence with the first `position` tokens of another, all pages shared. A page that
  /// `position` falls inside is copied by the first sharer that appends to it (which then needs a
  /// page; a reservation of `sequence` no longer covers it). Throws Error for a position beyond the
  /// length or among tokens released in some group.
  SequenceId fork(SequenceId sequence, std::int64_t position);
  SequenceId fork(SequenceId sequence);  // at its end
  /// Gives all pages back. Full pages with known ids can still be found until their space is
  /// needed: least recently used first, the end of a sequence before its beginning.
  void release(SequenceId sequence);
  /// Drops tokens from `length` on, and pages reserved beyond. Throws as fork does.
  void truncate(SequenceId sequence, std::int64_t length);
  /// Gives back the pages that lie entirely before `position`, in all groups: no query will need
  /// their keys (a sliding window). The view's `begin` becomes the page boundary at or below it.
  /// Positions do not change. Throws Error for a position beyond the length.
  void release_before(SequenceId sequence, std::int64_t position);
  /// Gives back the pages that lie entirely in begin <= p < end, in all groups (between the first
  /// tokens and a window, for example). Throws Error for positions outside the sequence, and if
  /// this would make a second gap.
  void release_between(SequenceId sequence, std::int64_t begin, std::int64_t end);
  /// Keeps, of each sequence, the tokens before `begin` and those at `positions`, whose rows move
  /// up in all layers: the accepted path of a tree of drafts. Drafts stay drafts, and tokens that
  /// move become drafts. Throws Error, before anything changes, for positions that do not ascend or
  /// lie outside the sequence, for tokens released in some group, and if shared pages must be
  /// copied and there are no free ones.
  void keep(std::span<const KeptTokens> step);
  void keep(SequenceId sequence, std::int64_t begin, std::span<const std::int64_t> positions);
  /// Accepts the tokens before `length`: they can be found by prefix as soon as they are written.
  /// For drafts, and for tokens that attend computed under a mask_mod not known to be causal by
  /// position alone: commit them if the cached rows depend only on their ids. Throws Error for a
  /// length beyond the sequence's; a smaller one than before changes nothing.
  void commit(SequenceId sequence, std::int64_t length);

  // --- Tokens ----------------------------------------------------------------------------------

  /// Whether append(step) would find pages. Throws Error for everything else that append rejects.
  bool can_reserve(std::span<const NewTokens> step) const;
  bool can_reserve(SequenceId sequence, std::int64_t count) const;
  /// Takes the pages for `count` more tokens of each sequence (ids are ignored), evicting and
  /// copying as needed, so that appending as many cannot fail. Throws Error if there are too few.
  void reserve(std::span<const NewTokens> step);
  void reserve(SequenceId sequence, std::int64_t count);
  /// Lengthens each sequence by its count. Throws Error, before anything changes: out of pages, a
  /// stale handle, a sequence named twice, a negative count, a number of ids other than count.
  /// Allocates only when a sequence outgrows all earlier ones of its slot.
  void append(std::span<const NewTokens> step);
  void append(SequenceId sequence, std::int64_t count, std::span<const std::int64_t> ids = {});
  /// Stores the rows of the last `count` tokens of each sequence, in the order of `step`. k: [sum
  /// of counts, kv_heads, head_dim], v: [.., v_head_dim], any strides, any floating dtype
  /// (rounded to the cache's, nearest, ties to even, or coded as quantize does). They must not
  /// overlap the pages. A full page with known ids can be found by prefix once its rows are
  /// written in all layers. Allocates nothing if dtypes are equal or rows are coded. Throws Error
  /// for mismatched shapes, for tokens in pages shared with others (written before a fork or
  /// found by prefix: their rows are already stored), and for numbers that a format cannot
  /// represent.
  void write(std::int64_t layer, std::span<const NewTokens> step, const ConstTensorView& k,
             const ConstTensorView& v);
  void write(std::int64_t layer, std::span<const NewTokens> step,
             const ConstTensorView& k);  // with v_in_k
  /// append and write for all layers: k [layers, sum of counts, kv_heads, head_dim], v likewise.
  /// Heads and dims must be the same in all groups.
  void append(std::span<const NewTokens> step, const ConstTensorView& k, const ConstTensorView& v);
  void append(std::span<const NewTokens> step, const ConstTensorView& k);  // with v_in_k
  /// Sets the scales of a layer whose format shares them between tokens, as quantize takes them:
  /// int8_channel [kv_heads, dim], fp8 [kv_heads] or [1]. fp8 scales are initially 1; int8_channel
  /// has none and cannot be written before they are set. A missing argument leaves them as they
  /// are. Throws Error, before anything changes, for scales that do not fit, for formats with
  /// scales per row, and if the group's pages already hold tokens.
  void set_scales(std::int64_t layer, const std::optional<ConstTensorView>& k_scales,
                  const std::optional<ConstTensorView>& v_scales);
  /// For engines that fill k_pages and v_pages themselves: marks the last `count` tokens of each
  /// sequence as written in this layer, or in all. attend rejects tokens that are not written.
  void mark_written(std::int64_t layer, std::span<const NewTokens> step);
  void mark_written(std::span<const NewTokens> step);

  // --- For attention ---------------------------------------------------------------------------

  SequenceView view(SequenceId sequence, std::int64_t group = 0) const;
  bool contains(SequenceId sequence) const noexcept;  // false if stale or of another cache
  /// Changes with every call that changes a page table or a length (write does not).
  std::uint64_t version() const noexcept;
  std::int64_t length(SequenceId sequence) const { return view(sequence).length; }
  /// How many tokens are accepted; see commit.
  std::int64_t committed(SequenceId sequence) const;
  /// The ids of its tokens, from the first on, as far as known. Valid as long as a view's pages.
  std::span<const std::int64_t> ids(SequenceId sequence) const;
  /// The pages of the layer's group: [n_pages, kv_heads, page_size, head_dim], row-major; v with
  /// v_head_dim, or with v_in_k the first columns of k. For coded formats the codes, with their
  /// bytes on the last axis. Unused slots hold arbitrary values.
  ConstTensorView k_pages(std::int64_t layer) const;
  ConstTensorView v_pages(std::int64_t layer) const;
  TensorView k_pages(std::int64_t layer);
  TensorView v_pages(std::int64_t layer);

  /// The scales of the codes, shaped as quantize makes them; of shape [0] if there are none.
  TensorView k_scales(std::int64_t layer);
  TensorView v_scales(std::int64_t layer);
  /// Pages with their scales, as attention takes them.
  KVView keys(std::int64_t layer) const;
  KVView values(std::int64_t layer) const;

  KVCacheStats stats() const noexcept;  // O(groups)
  KVCacheStats stats(std::int64_t group) const;

  // --- Persistence -----------------------------------------------------------------------------

  /// A sequence's tokens, ids and rows, with version, sizes and checksums. Independent of the page
  /// size. Rows are stored as they are, little endian. Throws Error if rows are not written in all
  /// layers.
  std::vector<std::byte> save(SequenceId sequence) const;
  /// A new sequence. Pages found under `salt` by their ids are shared, not stored again. Throws
  /// Error for anything that save did not write for the same groups of layers, heads, dims, dtypes,
  /// formats and shared scales, and when there are too few pages. The checksum finds accidents, not
  /// forgery: pages with ids can be found under `salt`, so load only what you trust with it.
  SequenceId load(std::span<const std::byte> bytes, std::uint64_t salt = 0);

  /// Passes the same bytes, piece by piece, to a callback, whose exceptions propagate.
  void save_to(SequenceId sequence, ByteSink sink) const;
  /// To a file, replaced only when all is written: a reader sees the old or the new file.
  void save_to(SequenceId sequence, const std::filesystem::path& file) const;
  /// From a callback, which must not use the cache. Reads no further than the sequence, so several
  /// may follow each other. Uses no more memory than bytes were received. If the bytes turn out to
  /// be damaged at their end, sequences are unchanged, but cached pages may have been evicted.
  SequenceId load_from(ByteSource source, std::uint64_t salt = 0);
  /// From a file, which is checked completely before anything changes.
  SequenceId load_from(const std::filesystem::path& file, std::uint64_t salt = 0);
  /// All sequences with their salts, in the order in which load_all returns them.
  void save_all(ByteSink sink) const;
  void save_all(const std::filesystem::path& file) const;
  /// Loads all of them or none. Sequences that shared pages with known ids share them again.
  std::vector<LoadedSequence> load_all(ByteSource source);
  std::vector<LoadedSequence> load_all(const std::filesystem::path& file);

  /// Internal.
  struct State;
  const State& state() const noexcept { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

}  // namespace quire
