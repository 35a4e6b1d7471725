// KVCache: keys and values of many sequences in pages of one pool, for people who build engines.
// It keeps the books (which page belongs to whom) and the rows; attention over it is attend()
// (quire/attend.h), which reads page tables from here. Public; cache layer.
//
//   KVCache cache({.layers = 32, .kv_heads = 8, .head_dim = 128, .n_pages = 4096});
//   auto [a, found] = cache.create_with_prefix(prompt_ids, tenant);  // found tokens are there
//   const NewTokens step[] = {{a, n - found, ids_of_the_rest}, {b, 1, next_id_of_b}, ...};
//   cache.append(step);                       // once per step: pages, or an error and no change
//   for (layer ...) {
//     cache.write(layer, step, k, v);         // rows of the new tokens, [tokens, kv_heads, dim]
//     attend(cache, layer, sequences, q ...);
//   }
//   cache.release(a);
//
// Layers that differ (in windows, heads, dims) are groups: each has its own pool of pages, one
// handle stands for a sequence in all of them.
//
// Every call is all or nothing: one that throws (Error, std::bad_alloc) leaves the cache as it was.
// A call touches only the sequences and pages it concerns: its time does not follow the pool.
//
// Threads: any number may call const members (attend does) at the same time; a call that is not
// const needs the cache for itself. Different caches share nothing.
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

/// Where there is no page: in a page table, for positions that release_before gave back.
inline constexpr std::int32_t kNoPage = -1;

/// The hash of a page: of the hash of the page before (the salt's for a first page) and its ids.
using PageHash = std::uint64_t (*)(std::uint64_t before,
                                   std::span<const std::int64_t> ids) noexcept;

/// Layers whose rows are alike and whose queries look equally far back.
struct KVLayerGroup {
  std::vector<std::int64_t> layers = {};  // of the model; each is in one group
  std::int64_t kv_heads = 1;
  std::int64_t head_dim = 64;
  std::int64_t v_head_dim = 0;  // 0: as head_dim
  DType dtype = DType::f32;     // f32, f64, bf16 or f16; of what is not coded
  /// How keys and values are stored: numbers of the dtype, or codes (quire/kv_format.h), made when
  /// rows are written. Scales that a format shares between tokens are set by set_scales.
  KVFormat k_format = {}, v_format = {};
  /// Values are the first v_head_dim numbers of keys (latent keys): they are not stored again, not
  /// given to write, and have the keys' format.
  bool v_in_k = false;
  /// Queries of these layers see the last `window` tokens (0: all of them) and the first
  /// `sink_tokens`. attend applies it; append gives back the pages that no query of its tokens or
  /// of later ones sees.
  std::int64_t window = 0;
  std::int64_t sink_tokens = 0;  // with a window only
  std::int64_t n_pages = 0;      // of its pool; 0: as the cache's
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
  PageHash page_hash = nullptr;  // the library's own if not given; a poor one costs time only
  /// Instead of layers, kv_heads, head_dim, v_head_dim, dtype, formats and v_in_k, which stand for
  /// one group of all layers: groups that together have the layers 0, 1, 2, ...
  std::vector<KVLayerGroup> groups = {};
};

/// A handle of a sequence of one cache. Those of another cache and stale ones (of a released
/// sequence) are refused.
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
  std::span<const std::int64_t> ids = {};  // none, or `count`: then full pages can be found again
  /// They may be given up again (speculation): they, and tokens appended behind them, can be found
  /// by prefix only when commit() has accepted them.
  bool draft = false;
};

/// What keep() leaves of a sequence: the tokens before `begin`, and behind them those that are at
/// `positions` now, which ascend from `begin` on.
struct KeptTokens {
  SequenceId sequence;
  std::int64_t begin = 0;
  std::span<const std::int64_t> positions = {};
};

struct CreatedSequence {
  SequenceId sequence;
  std::int64_t found = 0;  // tokens that were cached already: whole pages
};

/// The page table of a sequence in a group of layers. The row of position p < length is row
/// p % page_size of page pages[p / page_size], unless it was released. Equal page numbers are the
/// same memory, in every layer of the group. Valid until a call that changes the sequence.
struct SequenceView {
  std::span<const std::int32_t> pages;  // ceil(length / page_size); kNoPage where released
  std::int64_t begin = 0;               // first position whose keys are there
  std::int64_t length = 0;
  std::int64_t hole_begin = 0, hole_end = 0;  // positions between them were released
};

/// Of one group of layers, or sums over all of them (but for sequences and waste).
struct KVCacheStats {
  std::int64_t sequences = 0;
  std::int64_t live_tokens = 0;    // of all sequences, what they share counted for each
  std::int64_t stored_tokens = 0;  // filled slots of used pages, each counted once
  std::int64_t pages = 0;          // = used + cached + free
  std::int64_t used_pages = 0;     // held by a sequence, reserved ones as well
  std::int64_t shared_pages = 0;   // of these, held by more than one
  std::int64_t cached_pages = 0;   // held by none, found by prefix, taken when no page is free
  std::int64_t free_pages = 0;
  std::int64_t evictions = 0;     // cached pages taken so far
  std::int64_t copied_pages = 0;  // by copy on write, so far
  double waste = 0;               // share of slots of used pages that hold no token; 0 without any
  std::int64_t token_bytes = 0;   // of keys and values of a token in all layers, scales included
  std::int64_t bytes = 0;         // of all pages
  std::int64_t used_bytes = 0;    // of used pages
};

/// Takes the next bytes.
using ByteSink = FunctionRef<void(std::span<const std::byte>)>;
/// Fills as much of the span as it has, at least one byte, and returns how much; 0: there are no
/// more.
using ByteSource = FunctionRef<std::size_t(std::span<std::byte>)>;

struct LoadedSequence {
  SequenceId saved;     // its handle in the cache that was saved
  SequenceId sequence;  // and now
};

class QUIRE_API KVCache {
 public:
  /// Allocates everything that follows n_pages. Memory of the pages is not touched before they are
  /// used. Throws Error for sizes below 1 (n_pages: 0), a dtype that is not floating, a format that
  /// does not exist or does not fit the head dim, and a pool that does not fit into memory.
  explicit KVCache(const KVCacheOptions& options);
  KVCache(KVCache&&) noexcept;
  KVCache& operator=(KVCache&&) noexcept;
  ~KVCache();

  /// With everything filled in. Of several groups kv_heads, head_dim, v_head_dim, dtype, formats
  /// and v_in_k are the first's, n_pages is the sum.
  const KVCacheOptions& options() const noexcept;
  /// The groups of layers, at least one, with everything filled in.
  std::span<const KVLayerGroup> groups() const noexcept { return options().groups; }
  /// The number of the group that a layer is in. Throws Error for a layer outside the cache.
  std::int64_t group_of(std::int64_t layer) const;

  // --- Sequences -------------------------------------------------------------------------------

  /// A new, empty sequence. Sequences of different salts never share a page by prefix.
  SequenceId create(std::uint64_t salt = 0);
  /// One that begins with the longest chain of full pages found in the cache with exactly these ids
  /// and this salt; in a group with a window, of which the pages in front of its end are there that
  /// the next token sees. To have a query for the last token, leave it out of `ids`. O(pages of
  /// ids).
  CreatedSequence create_with_prefix(std::span<const std::int64_t> ids, std::uint64_t salt = 0);
  /// How many tokens create_with_prefix would find.
  std::int64_t cached_prefix(std::span<const std::int64_t> ids, std::uint64_t salt = 0) const;
  /// A second sequence with the first `position` tokens of one, all pages shared. The page that
  /// `position` lies inside of is copied by the first of its sharers that appends to it (needs a
  /// page then; a reservation of `sequence` no longer covers it).
  /// Throws Error for a position beyond the length or among released tokens of some group.
  SequenceId fork(SequenceId sequence, std::int64_t position);
  SequenceId fork(SequenceId sequence);  // at its end
  /// Gives all pages back. Full pages with known ids stay findable until their place is needed,
  /// least recently used first, the end of a sequence before its beginning.
  void release(SequenceId sequence);
  /// Drops tokens from `length` on, and pages reserved beyond. Throws as fork.
  void truncate(SequenceId sequence, std::int64_t length);
  /// Gives back the pages that lie before `position` as a whole, in all groups: no query will ask
  /// for their keys (a sliding window). `begin` of the view becomes the next page border below.
  /// Positions stay what they are. Throws Error for a position beyond the length.
  void release_before(SequenceId sequence, std::int64_t position);
  /// Gives back the pages that lie in begin <= p < end as a whole, in all groups (what is between
  /// the first tokens and a window). Throws Error for positions outside the sequence, and where a
  /// second gap would come about beside an earlier one.
  void release_between(SequenceId sequence, std::int64_t begin, std::int64_t end);
  /// Of each sequence, the tokens before `begin` and behind them those at `positions`, whose rows
  /// move up in all layers: the accepted path of a tree of drafts. Drafts stay drafts, and tokens
  /// that move become drafts. Throws Error, before anything changes, for positions that do not
  /// ascend or lie outside the sequence, for tokens that were released in some group, and where
  /// pages that are shared must be copied and there are none.
  void keep(std::span<const KeptTokens> step);
  void keep(SequenceId sequence, std::int64_t begin, std::span<const std::int64_t> positions);
  /// Tokens before `length` are accepted: they can be found by prefix as soon as they are written.
  /// For drafts, and for tokens that attend computed under a mask_mod that is not known to be
  /// causal by position alone: if what the cache holds for them is what their ids say, say so here.
  /// Throws Error for a length beyond the sequence's; a smaller one than before changes nothing.
  void commit(SequenceId sequence, std::int64_t length);

  // --- Tokens ----------------------------------------------------------------------------------

  /// Whether append(step) would find pages. Throws Error for what append refuses otherwise.
  bool can_reserve(std::span<const NewTokens> step) const;
  bool can_reserve(SequenceId sequence, std::int64_t count) const;
  /// Takes the pages for `count` more tokens of each (ids are not used), evicting and copying as
  /// needed, so that appending so many cannot fail. Throws Error if there are not enough.
  void reserve(std::span<const NewTokens> step);
  void reserve(SequenceId sequence, std::int64_t count);
  /// Lengthens each sequence by its count. Throws Error, before anything changes: out of pages, a
  /// stale handle, a sequence named twice, a negative count, another number of ids than count.
  /// Allocates only when a sequence outgrows all earlier ones of its slot.
  void append(std::span<const NewTokens> step);
  void append(SequenceId sequence, std::int64_t count, std::span<const std::int64_t> ids = {});
  /// Stores the rows of the last `count` tokens of each sequence, one after the other in the order
  /// of `step`. k: [sum of counts, kv_heads, head_dim], v: [.., v_head_dim], any strides, any
  /// floating dtype (rounded to the cache's, nearest, ties to even, or coded as quantize does).
  /// They must not overlap the pages. A full page whose ids are known becomes findable when its
  /// rows are written in all layers. Allocates nothing where dtypes are equal, and where rows are
  /// coded. Throws Error for shapes that do not fit, for tokens in pages that others share (written
  /// before a fork or found by prefix: their rows are stored already), and for numbers that a
  /// format has no codes for.
  void write(std::int64_t layer, std::span<const NewTokens> step, const ConstTensorView& k,
             const ConstTensorView& v);
  void write(std::int64_t layer, std::span<const NewTokens> step,
             const ConstTensorView& k);  // with v_in_k
  /// append and write for all layers: k [layers, sum of counts, kv_heads, head_dim], v alike.
  /// Heads and dims must be the same in all groups.
  void append(std::span<const NewTokens> step, const ConstTensorView& k, const ConstTensorView& v);
  void append(std::span<const NewTokens> step, const ConstTensorView& k);  // with v_in_k
  /// The scales of a layer whose format shares them between tokens, as quantize takes them:
  /// int8_channel [kv_heads, dim], fp8 [kv_heads] or [1]. Those of fp8 are 1 until they are set;
  /// int8_channel has none, and cannot be written before. Not given: as they are. Throws Error,
  /// before anything changes, for scales that do not fit, for formats whose rows have their own,
  /// and where the group's pages hold tokens already.
  void set_scales(std::int64_t layer, const std::optional<ConstTensorView>& k_scales,
                  const std::optional<ConstTensorView>& v_scales);
  /// For engines that fill k_pages and v_pages by themselves: the last `count` tokens of each are
  /// written in this layer, or in all. attend refuses layers that are not written.
  void mark_written(std::int64_t layer, std::span<const NewTokens> step);
  void mark_written(std::span<const NewTokens> step);

  // --- For attention ---------------------------------------------------------------------------

  SequenceView view(SequenceId sequence, std::int64_t group = 0) const;
  bool contains(SequenceId sequence) const noexcept;  // false when stale or another cache's
  /// Another number after every call that changed a page table or a length (write does not).
  std::uint64_t version() const noexcept;
  std::int64_t length(SequenceId sequence) const { return view(sequence).length; }
  /// So many tokens are accepted, see commit.
  std::int64_t committed(SequenceId sequence) const;
  /// The ids of its tokens, as far as they are known from the first on. Valid as a view's pages.
  std::span<const std::int64_t> ids(SequenceId sequence) const;
  /// Of the layer's group: [n_pages, kv_heads, page_size, head_dim], row-major; v with v_head_dim,
  /// or with v_in_k the first columns of k. Of a format the codes, with their bytes on the last
  /// axis. Slots that hold no token hold anything.
  ConstTensorView k_pages(std::int64_t layer) const;
  ConstTensorView v_pages(std::int64_t layer) const;
  TensorView k_pages(std::int64_t layer);
  TensorView v_pages(std::int64_t layer);

  /// The scales beside the codes, shaped as quantize makes them; of shape [0] if there are none.
  TensorView k_scales(std::int64_t layer);
  TensorView v_scales(std::int64_t layer);
  /// Pages with their scales, as attention takes them.
  KVView keys(std::int64_t layer) const;
  KVView values(std::int64_t layer) const;

  KVCacheStats stats() const noexcept;  // O(groups)
  KVCacheStats stats(std::int64_t group) const;

  // --- Persistence -----------------------------------------------------------------------------

  /// A sequence's tokens, ids and rows, with version, sizes and checksums. Does not depend on the
  /// page size. Rows are stored as they are, little endian. Throws Error where rows are not written
  /// in all layers.
  std::vector<std::byte> save(SequenceId sequence) const;
  /// A new sequence. Pages found under `salt` by their ids are shared, not stored again. Throws
  /// Error for anything but what save wrote for the same groups of layers, heads, dims, dtypes,
  /// formats and shared scales, and when there are too few pages. The checksum finds accidents, not
  /// forgery: pages with ids become findable under `salt`, so load only what you trust with it.
  SequenceId load(std::span<const std::byte> bytes, std::uint64_t salt = 0);

  /// The same bytes, piece by piece, to a callback; what it throws is passed on.
  void save_to(SequenceId sequence, ByteSink sink) const;
  /// To a file, which is replaced when all is written: a reader sees the old file or the new one.
  void save_to(SequenceId sequence, const std::filesystem::path& file) const;
  /// From a callback, which must not use the cache; it ends behind the sequence, so several may
  /// follow each other. Takes no more memory than bytes came. Where the bytes turn out to be
  /// damaged at their end, sequences are as they were, but cached pages may have been evicted.
  SequenceId load_from(ByteSource source, std::uint64_t salt = 0);
  /// From a file, which is checked as a whole before anything changes.
  SequenceId load_from(const std::filesystem::path& file, std::uint64_t salt = 0);
  /// All sequences with their salts, in the order in which load_all returns them.
  void save_all(ByteSink sink) const;
  void save_all(const std::filesystem::path& file) const;
  /// All of them or none. Sequences that shared pages with known ids share them again.
  std::vector<LoadedSequence> load_all(ByteSource source);
  std::vector<LoadedSequence> load_all(const std::filesystem::path& file);

  /// For the library's own files.
  struct State;
  const State& state() const noexcept { return *state_; }

 private:
  std::unique_ptr<State> state_;
};

}  // namespace quire
