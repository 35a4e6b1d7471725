// The block masks of a call: none, one for the whole batch, or one per sequence. Made by
// create_block_mask and create_jagged_block_mask. Public; mask layer.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "quire/block_mask.h"
#include "quire/export.h"
#include "quire/mod.h"

namespace quire {

/// One block mask per sequence of a batch, all made from one rule. Sequences of equal lengths share
/// a mask if the rule does not depend on b. A value: copies are cheap and share the masks.
class QUIRE_API JaggedBlockMask {
 public:
  std::int64_t sequences() const { return static_cast<std::int64_t>(data_->which.size()); }
  /// The mask of one sequence: [1, heads, its q_len, its kv_len]. Its mask_mod is the rule for that
  /// sequence's b.
  const BlockMask& operator[](std::int64_t sequence) const;
  const MaskMod& mask_mod() const { return data_->rule; }

  /// Internal: sequence i has masks[which[i]].
  JaggedBlockMask(MaskMod mask_mod, std::vector<BlockMask> masks, std::vector<std::int64_t> which)
      : data_(std::make_shared<const Data>(
            Data{std::move(mask_mod), std::move(masks), std::move(which)})) {}
  const std::vector<BlockMask>& masks() const { return data_->masks; }
  const std::vector<std::int64_t>& which() const { return data_->which; }

 private:
  struct Data {
    MaskMod rule;
    std::vector<BlockMask> masks;     // distinct masks
    std::vector<std::int64_t> which;  // index into masks, for each sequence
  };
  std::shared_ptr<const Data> data_;
};

/// Behaves like std::optional<BlockMask> where a call has one mask for its batch.
class QUIRE_API BlockMasks {
 public:
  BlockMasks() = default;
  BlockMasks(std::nullopt_t) {}                                         // NOLINT: converts
  BlockMasks(BlockMask mask) : one_(std::move(mask)) {}                 // NOLINT: converts
  BlockMasks(std::optional<BlockMask> mask) : one_(std::move(mask)) {}  // NOLINT: converts
  BlockMasks(JaggedBlockMask masks) : each_(std::move(masks)) {}        // NOLINT: converts

  bool has_value() const { return one_.has_value() || each_.has_value(); }
  explicit operator bool() const { return has_value(); }
  bool is_per_sequence() const { return each_.has_value(); }

  // The mask of the whole batch. Requires has_value() and not is_per_sequence().
  const BlockMask& operator*() const { return *one_; }
  const BlockMask* operator->() const { return &*one_; }
  // The masks of the sequences. Requires is_per_sequence().
  const JaggedBlockMask& per_sequence() const { return *each_; }

  /// The rule. Requires has_value(). Throws Error as BlockMask::mask_mod.
  const MaskMod& mask_mod() const { return each_ ? each_->mask_mod() : one_->mask_mod(); }
  /// Distinct masks; empty without a value.
  std::span<const BlockMask> masks() const;
  /// Index into masks() for a sequence.
  std::int64_t mask_of(std::int64_t sequence) const;
  /// q_idx of the first query of a sequence.
  std::int64_t q_begin(std::int64_t sequence) const {
    return masks()[static_cast<std::size_t>(mask_of(sequence))].q_begin();
  }
  /// Index of the stored plane that this head of the sequence uses in its mask.
  std::int64_t plane(std::int64_t sequence, std::int64_t h) const;

 private:
  std::optional<BlockMask> one_;
  std::optional<JaggedBlockMask> each_;
};

}  // namespace quire
