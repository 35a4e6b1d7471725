// Document masks: several documents packed into one sequence; tokens see only their own document.
// Krell et al., "Efficient Sequence Packing without Cross-contamination", 2021. Mods layer.
#include <algorithm>

#include "mods/arguments.h"
#include "quire/error.h"
#include "quire/mods.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"

namespace quire::mods {
namespace {

constexpr std::string_view kShapes = "[len] or [batch, len]";

// The id of a position: ids[i] or ids[b, i].
AnyExpr id_at(const Buffer& ids, const IntExpr& b, const IntExpr& i) {
  return ids.shape().rank() == 1 ? ids[i].element() : ids(or_only(b, ids, 0), i).element();
}

// (q_ids[q_idx] == kv_ids[kv_idx]) & (kv_ids[kv_idx] >= 0)
MaskMod same_document(const Buffer& q_ids, const Buffer& kv_ids) {
  check_rank("document", q_ids, 1, 2, kShapes);
  check_rank("document", kv_ids, 1, 2, kShapes);
  return [&](auto b, auto, auto q, auto kv) {
    const auto key = id_at(kv_ids, b, kv);
    return (id_at(q_ids, b, q) == key) & (key >= 0);
  };
}

// Throws unless the offsets begin at 0 and never decrease.
void check_offsets(std::span<const std::int64_t> offsets) {
  constexpr const char* kFunction = "document_from_offsets";
  if (offsets.empty()) fail(ErrorKind::value, kFunction, "offsets must hold at least one number");
  if (offsets[0] != 0)
    fail(ErrorKind::value, kFunction, "offsets must begin with 0; got {}", offsets[0]);
  for (std::size_t i = 1; i < offsets.size(); ++i) {
    if (offsets[i] < offsets[i - 1])
      fail(ErrorKind::value, kFunction, "offsets must not fall; got {} after {} at index {}",
           offsets[i], offsets[i - 1], i);
  }
}

}  // namespace

MaskMod document(const Table& ids) {
  const FloatEnv float_env;
  const Buffer both = integer_table("document", "ids", ids);
  return same_document(both, both);
}

MaskMod document(const Table& q_ids, const Table& kv_ids) {
  const FloatEnv float_env;
  return same_document(integer_table("document", "q_ids", q_ids),
                       integer_table("document", "kv_ids", kv_ids));
}

// The ids are written out, because with ascending ids an interval of positions is an interval of
// ids; nothing could be proved about a search in the offsets.
MaskMod document_from_offsets(const Table& offsets, std::int64_t length) {
  const FloatEnv float_env;
  constexpr const char* kFunction = "document_from_offsets";
  const Buffer given = integer_table(kFunction, "offsets", offsets);
  check_rank(kFunction, given, 1, 1, "[documents + 1]");
  check_has_data(kFunction, given);
  const Tensor wide = to(given.view(), DType::i64);
  const std::span<const std::int64_t> starts(wide.data_as<std::int64_t>(), wide.numel());
  check_offsets(starts);
  if (length == -1) length = starts.back();
  if (length < starts.back())
    fail(ErrorKind::value, kFunction, "length must be at least the last offset {}; got {}",
         starts.back(), length);
  Tensor ids = Tensor::empty({length}, DType::i32);
  std::int32_t* id = ids.data_as<std::int32_t>();
  std::fill(id, id + length, -1);
  for (std::size_t i = 0; i + 1 < starts.size(); ++i)
    std::fill(id + starts[i], id + starts[i + 1], static_cast<std::int32_t>(i));
  return document(Buffer(ids, {.name = "ids"}));
}

}  // namespace quire::mods
