// BlockMask: which (query block, key block) pairs hold anything to compute, as runs of blocks per
// row, and the rule that decides inside a block that is only partly visible. Made from a formula by
// proof (create_block_mask) or from lists of blocks (from_kv_blocks). Public; mask layer.
//
//   BlockMask mask = create_block_mask(causal & window, B, H, q_len, kv_len);
//   std::cout << mask;
//
// Meaning and index tensors are those of torch.nn.attention.flex_attention.BlockMask; inside, rows
// are runs, equal rows are stored once, and so are equal heads and batches.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "quire/executor.h"
#include "quire/export.h"
#include "quire/mod.h"
#include "quire/tensor.h"

namespace quire {

namespace mask {
class BlockRows;
struct BlockMaskData;
}  // namespace mask

/// Elements a block has along each axis. torch's BLOCK_SIZE = (Q_BLOCK_SIZE, KV_BLOCK_SIZE).
struct BlockSize {
  std::int64_t q = 128, kv = 128;

  constexpr BlockSize() = default;
  constexpr BlockSize(std::int64_t both) : q(both), kv(both) {}  // NOLINT: an int is a block size
  constexpr BlockSize(std::int64_t q_size, std::int64_t kv_size) : q(q_size), kv(kv_size) {}
  friend bool operator==(const BlockSize&, const BlockSize&) = default;
};

enum class BlockKind : std::uint8_t {
  kEmpty,    // no element is visible; never touched
  kPartial,  // the mask mod decides per element
  kFull,     // all elements are visible, the mask mod need not run
  // Cut off by the end of the queries or keys, and all elements that exist are visible. Computed
  // like kFull; listed as partial in the index tensors, because torch pads with "hidden".
  kFullToEdge,
};

/// Consecutive blocks of one kind in a row; never kEmpty.
struct BlockRun {
  std::uint32_t begin = 0;
  std::uint32_t length : 30 = 0;
  BlockKind kind : 2 = BlockKind::kPartial;

  std::int64_t end() const { return static_cast<std::int64_t>(begin) + length; }
  friend bool operator==(const BlockRun&, const BlockRun&) = default;
};

/// An index along one axis: everything, one position (kept as an axis of size 1, as torch does), a
/// half-open range with a step >= 1, or a list of positions. Negative positions count from the end.
struct BlockSlice {
  std::optional<std::int64_t> start = {}, stop = {};
  std::int64_t step = 1;
};
using BlockIndex = std::variant<BlockSlice, std::int64_t, std::vector<std::int64_t>>;

/// One rectangle that the proof of a block mask looked at.
struct ProofStep {
  enum class Outcome : std::uint8_t {
    kEmpty,      // its bounds show that nothing in it is visible
    kFull,       // its bounds show that everything in it is
    kSplit,      // undecided: cut into two, which come next
    kEvaluated,  // undecided and small: its elements are evaluated
  };
  std::int64_t q_begin = 0, q_end = 0, kv_begin = 0, kv_end = 0;  // elements; q without q_begin
  Outcome outcome = Outcome::kEmpty;
};

/// How a block mask was found: for `quire explain --mask`, the playground page and benchmarks.
struct BlockMaskReport {
  std::int64_t rectangles = 0;  // classified by interval arithmetic
  std::int64_t evaluated = 0;   // elements evaluated one by one
  std::int64_t area = 0;        // elements of all (batch, head) planes that were built
  std::int64_t planes = 0;      // (batch, head) planes that were built
  /// Input: how many rectangles of each thread, from its first, go into `steps`, in the order of
  /// the proof. The rest of this struct is output.
  std::size_t most_steps = 0;
  std::vector<ProofStep> steps = {};
};

struct BlockMaskOptions {
  BlockSize block_size = {};
  /// False: full blocks are listed among the partial ones, and there are no full_* tensors.
  bool separate_full_blocks = true;
  std::int64_t q_begin = 0;           // q_idx of the first row
  std::int64_t max_bytes = 0;         // refuse larger masks; 0: what memory is available
  Executor* executor = nullptr;       // default_executor() if null
  BlockMaskReport* report = nullptr;  // filled in if not null
};

/// How BlockMask::encode stores blocks.
enum class BlockCode : std::uint8_t {
  kShort,  // the smaller of the two, but dense whenever that takes at most 256 KiB
  kDense,  // two bits per block: the same number of words for every mask of these sizes
  kRuns,   // the runs of distinct rows: few words for a large mask, but their number varies
};

/// A list of blocks per row: num_blocks int32 or int64 [..., rows], indices [..., rows, n]; only
/// the first num_blocks entries of each row count.
struct BlockLists {
  ConstTensorView num_blocks, indices;
};

struct FromKvBlocksOptions {
  std::optional<BlockLists> full = {};  // blocks in which the mask mod need not run
  BlockSize block_size = {};
  std::optional<MaskMod> mask_mod = {};  // everything is visible if not given
  /// q_len and kv_len; by default all rows and columns of blocks, whole. With a kv_len, `indices`
  /// may be narrower than the number of key blocks (a list of the best k, for example).
  std::optional<std::pair<std::int64_t, std::int64_t>> seq_lengths = {};
  bool compute_q_blocks = true;
  /// The lists name pages of a pool: -1 marks a missing page and is skipped, and the index tensors
  /// are returned as wide as the pool, padded with zeros.
  bool are_pages = false;
};

/// A value: copies are cheap and share what does not change. const functions may run on many
/// threads at once.
class QUIRE_API BlockMask {
 public:
  /// Blocks chosen by data. Throws Error for inconsistent tensors, a block outside the mask and a
  /// block listed twice in a row.
  static BlockMask from_kv_blocks(const BlockLists& kv, const FromKvBlocksOptions& options = {});

  /// Whether from_kv_blocks, given these lists and otherwise the same arguments, would make this
  /// mask again. False for masks made in another way and for lists that differ in any entry.
  bool made_from(const BlockLists& kv, const std::optional<BlockLists>& full = {}) const;

  // ---- size

  /// [batch, heads, q_len, kv_len], fewer batch axes if made from tensors that had fewer.
  const Shape& shape() const;
  std::int64_t batch() const;
  std::int64_t heads() const;
  std::pair<std::int64_t, std::int64_t> seq_lengths() const;
  BlockSize block_size() const;
  std::int64_t q_blocks() const;
  std::int64_t kv_blocks() const;
  std::int64_t q_begin() const;
  bool separate_full_blocks() const;

  /// Elements, visible or not; the largest int64 if there are more.
  std::int64_t numel() const;
  /// Percentage of elements in blocks that are not computed. As in torch, a block cut off by an
  /// edge counts whole, so a short mask may have a negative sparsity.
  double sparsity() const;
  /// Bytes held by this mask, including what it shares with copies, excluding captured buffers.
  std::size_t nbytes() const;

  // ---- rule

  /// Throws Error for the result of index(), whose positions are not those the rule was written
  /// for: take the original mask's rule, shift it and call set_mask_mod.
  const MaskMod& mask_mod() const;
  bool has_mask_mod() const;
  void set_mask_mod(MaskMod mod);
  /// One formula for the whole mask: the mask mod, or, for blocks chosen by data, the mask mod
  /// inside listed blocks (which captures the lists as a bool per block).
  MaskMod whole_mask_mod(Executor* executor = nullptr) const;

  // ---- blocks

  /// The runs of a row of blocks, ascending, not touching unless of different kinds.
  std::span<const BlockRun> runs(std::int64_t b, std::int64_t h, std::int64_t q_block) const;
  BlockKind kind(std::int64_t b, std::int64_t h, std::int64_t q_block, std::int64_t kv_block) const;
  /// Which of the stored (batch, head) planes this is; equal planes have equal numbers.
  std::int64_t plane(std::int64_t b, std::int64_t h) const;
  const mask::BlockRows& block_rows() const;
  /// The same picture seen from the keys: runs of query blocks per key block.
  std::shared_ptr<const mask::BlockRows> transposed() const;

  // ---- index tensors: int32, made on demand on the given or the default executor; entries after
  // num_blocks are those torch has

  Tensor kv_num_blocks(Executor* executor = nullptr) const;  // [batch, heads, q_blocks]
  Tensor kv_indices(Executor* executor = nullptr) const;     // [batch, heads, q_blocks, kv_blocks]
  std::optional<Tensor> full_kv_num_blocks(Executor* executor = nullptr) const;
  std::optional<Tensor> full_kv_indices(Executor* executor = nullptr) const;
  std::optional<Tensor> q_num_blocks(
      Executor* executor = nullptr) const;  // [batch, heads, kv_blocks]
  std::optional<Tensor> q_indices(
      Executor* executor = nullptr) const;  // [batch, heads, kv_blocks, q_blocks]
  std::optional<Tensor> full_q_num_blocks(Executor* executor = nullptr) const;
  std::optional<Tensor> full_q_indices(Executor* executor = nullptr) const;
  /// 1 where a block is partial or full, int32 [batch, heads, q_blocks, kv_blocks].
  Tensor to_dense(Executor* executor = nullptr) const;

  // ---- parts

  /// mask[b, h, q_block]: the blocks at these positions, lists applied axis by axis. q_len and
  /// kv_len stay; the mask mod is removed (see mask_mod()).
  BlockMask index(const BlockIndex& b, const BlockIndex& h = BlockSlice(),
                  const BlockIndex& q_block = BlockSlice()) const;
  /// The first rows and columns of blocks, for shorter queries and keys (torch's _adjust). Kinds of
  /// blocks stay as they are. Throws Error if the lengths need more blocks than there are.
  BlockMask adjust(std::int64_t q_len, std::int64_t kv_len) const;
  /// Exactly the rows q_begin..q_end-1 of this mask (counted from 0), in blocks that start at the
  /// first of them: what create_block_mask would give for these rows alone. Its q_begin is this
  /// mask's plus the argument, so the mask mod applies. Only partial blocks are evaluated.
  BlockMask rows(std::int64_t q_begin, std::int64_t q_end) const;
  /// Grows the mask by `q_rows` queries and `kv_columns` keys. Only new blocks and blocks that were
  /// cut off are proved. Throws Error for blocks chosen by data.
  void append_rows(std::int64_t q_rows, std::int64_t kv_columns);

  // ---- as numbers, for other processes

  /// Sizes and blocks as i64 [words], without the rule and the order of given lists. The words mean
  /// the same in every process and carry a version and a checksum.
  Tensor encode(BlockCode code = BlockCode::kShort) const;
  /// The mask encoded by such words, with noop_mask as its rule. Throws Error for words that
  /// encode() did not write, damaged ones included.
  static BlockMask decode(const ConstTensorView& words);
  /// How many words encode(BlockCode::kDense) writes for a mask of these sizes.
  static std::int64_t dense_words(std::int64_t batch, std::int64_t heads, std::int64_t q_blocks,
                                  std::int64_t kv_blocks);

  // ---- combination; sizes of masks and blocks must be equal, a batch or head of 1 is broadcast

  friend QUIRE_API BlockMask operator&(const BlockMask& a, const BlockMask& b);
  friend QUIRE_API BlockMask operator|(const BlockMask& a, const BlockMask& b);
  friend QUIRE_API BlockMask operator~(const BlockMask& a);
  /// Same sizes, same blocks, same rule.
  friend QUIRE_API bool operator==(const BlockMask& a, const BlockMask& b);
  /// Same sizes and same blocks of the same kinds; the rules may be written differently.
  bool same_blocks(const BlockMask& other) const;

  // ---- text

  /// The picture as torch prints it, one per (batch, head) up to `limit`: two characters per cell,
  /// full, mixed or blank. A cell of the grid stands for several blocks if there are more.
  std::string to_string(std::array<std::int64_t, 2> grid_size = {20, 20},
                        std::int64_t limit = 4) const;
  friend QUIRE_API std::ostream& operator<<(std::ostream& out, const BlockMask& mask);

  /// Internal: a mask from its parts.
  explicit BlockMask(std::shared_ptr<const mask::BlockMaskData> data) : data_(std::move(data)) {}
  const mask::BlockMaskData& data() const { return *data_; }

 private:
  std::shared_ptr<const mask::BlockMaskData> data_;
};

/// The block mask of a rule. Exact: a block's kind was proved, or found by evaluating its elements.
/// A mask that turns out equal for all batches or heads is stored once. Parallel over the executor;
/// the result does not depend on it. Throws Error for sizes out of range, a mask larger than
/// max_bytes, buffers without data and, as evaluate does, for the first visible element that reads
/// outside a buffer.
QUIRE_API BlockMask create_block_mask(const MaskMod& mask_mod, std::int64_t batch,
                                      std::int64_t heads, std::int64_t q_len, std::int64_t kv_len,
                                      const BlockMaskOptions& options = {});

struct CreateMaskOptions {
  std::int64_t q_begin = 0;
  Executor* executor = nullptr;
};

/// The mask as bools [batch, heads, q_len, kv_len]. For a score mod: true where it does not turn a
/// score of 0 into -inf. Throws Error if it does not fit into memory; otherwise as evaluate.
QUIRE_API Tensor create_mask(const MaskMod& mod, std::int64_t batch, std::int64_t heads,
                             std::int64_t q_len, std::int64_t kv_len,
                             const CreateMaskOptions& options = {});
QUIRE_API Tensor create_mask(const ScoreMod& mod, std::int64_t batch, std::int64_t heads,
                             std::int64_t q_len, std::int64_t kv_len,
                             const CreateMaskOptions& options = {});

}  // namespace quire
