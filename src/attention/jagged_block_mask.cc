// JaggedBlockMask, and how it is made. Attention layer.
#include <utility>

#include "attention/jagged_sequences.h"
#include "mask/sequence_masks.h"
#include "quire/error.h"
#include "quire/jagged.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"

namespace quire {

JaggedBlockMask::JaggedBlockMask(MaskMod mask_mod, std::vector<BlockMask> masks,
                                 std::vector<std::int64_t> which)
    : mask_mod_(std::move(mask_mod)), masks_(std::move(masks)), which_(std::move(which)) {}

const BlockMask& JaggedBlockMask::operator[](std::int64_t sequence) const {
  if (sequence < 0 || sequence >= sequences()) {
    fail(ErrorKind::index, "JaggedBlockMask", "sequence {} is outside a batch of {}", sequence,
         sequences());
  }
  return masks_[static_cast<std::size_t>(which_[static_cast<std::size_t>(sequence)])];
}

JaggedBlockMask create_jagged_block_mask(const MaskMod& mask_mod, std::int64_t heads,
                                         const Jagged& q, const Jagged& kv,
                                         const BlockMaskOptions& options) {
  const FloatEnv float_env;
  constexpr const char* kWhere = "create_jagged_block_mask";
  const attention::JaggedSequences q_rows = attention::read_sequences(kWhere, "query", q);
  const attention::JaggedSequences kv_rows = attention::read_sequences(kWhere, "key", kv);
  if (q_rows.count() != kv_rows.count()) {
    fail(ErrorKind::value, kWhere,
         "query and key must have the same number of sequences; got {} and {}", q_rows.count(),
         kv_rows.count());
  }
  mask::SequenceMasks made = mask::create_sequence_masks(
      kWhere, mask_mod, heads, {.q = q_rows.rows.length, .kv = kv_rows.rows.length}, options);
  return JaggedBlockMask(mask_mod, std::move(made.masks), std::move(made.which));
}

}  // namespace quire
