// The C interface: block masks. C API layer.
#include "quire/block_mask.h"

#include <algorithm>
#include <cstring>

#include "c_api/arguments.h"
#include "c_api/handles.h"
#include "c_api/status.h"
#include "quire/error.h"

using namespace quire;

namespace {

BlockSize block_size(const quire_block_mask_options& options) {
  const BlockSize usual;
  return {options.q_block == 0 ? usual.q : options.q_block,
          options.kv_block == 0 ? usual.kv : options.kv_block};
}

BlockLists lists(const quire_tensor* num_blocks, const quire_tensor* indices, const char* name) {
  const std::string names[] = {std::string(name) + "num_blocks", std::string(name) + "indices"};
  constexpr const char* kName = "quire_block_mask_from_kv_blocks";
  return {c_api::tensor(num_blocks, kName, names[0].c_str()),
          c_api::tensor(indices, kName, names[1].c_str())};
}

}  // namespace

quire_status quire_block_mask_create(const quire_mask_mod* mod,
                                     const quire_block_mask_options* options,
                                     quire_block_mask** mask) {
  return c_api::guarded([&] {
    constexpr const char* kName = "quire_block_mask_create";
    c_api::require(mask, kName, "mask");
    *mask = nullptr;
    c_api::require(mod, kName, "mod");
    const quire_block_mask_options given = c_api::versioned(options, kName, "options");
    *mask = new quire_block_mask{create_block_mask(
        mod->mod, given.batch == 0 ? 1 : given.batch, given.heads == 0 ? 1 : given.heads,
        given.q_len, given.kv_len, {.block_size = block_size(given), .q_begin = given.q_begin})};
  });
}

quire_status quire_block_mask_from_kv_blocks(const quire_kv_blocks* blocks,
                                             const quire_block_mask_options* options,
                                             quire_block_mask** mask) {
  return c_api::guarded([&] {
    constexpr const char* kName = "quire_block_mask_from_kv_blocks";
    c_api::require(mask, kName, "mask");
    *mask = nullptr;
    const quire_kv_blocks given = c_api::versioned(blocks, kName, "blocks");
    const quire_block_mask_options sizes = c_api::versioned_or_default(options, kName, "options");
    if (sizes.batch != 0 || sizes.heads != 0 || sizes.q_begin != 0)
      throw Error(ErrorKind::value,
                  "[quire_block_mask_from_kv_blocks] batch and heads are those of the lists, and "
                  "q_begin is not taken: options must have 0 there");
    FromKvBlocksOptions wanted{.block_size = block_size(sizes)};
    if (sizes.q_len != 0 || sizes.kv_len != 0)
      wanted.seq_lengths = std::pair(sizes.q_len, sizes.kv_len);
    if (given.full_num_blocks != nullptr || given.full_indices != nullptr)
      wanted.full = lists(given.full_num_blocks, given.full_indices, "blocks.full_");
    if (given.mod != nullptr) wanted.mask_mod = given.mod->mod;
    *mask = new quire_block_mask{
        BlockMask::from_kv_blocks(lists(given.num_blocks, given.indices, "blocks."), wanted)};
  });
}

quire_status quire_block_mask_shape(const quire_block_mask* mask, int64_t shape[4]) {
  return c_api::guarded([&] {
    c_api::require(mask, "quire_block_mask_shape", "mask");
    c_api::require(shape, "quire_block_mask_shape", "shape");
    const auto [q_len, kv_len] = mask->mask.seq_lengths();
    const int64_t sizes[4] = {mask->mask.batch(), mask->mask.heads(), q_len, kv_len};
    std::copy(sizes, sizes + 4, shape);
  });
}

quire_status quire_block_mask_sparsity(const quire_block_mask* mask, double* percent) {
  return c_api::guarded([&] {
    c_api::require(mask, "quire_block_mask_sparsity", "mask");
    c_api::require(percent, "quire_block_mask_sparsity", "percent");
    *percent = mask->mask.sparsity();
  });
}

quire_status quire_block_mask_to_string(const quire_block_mask* mask, char* text, size_t capacity,
                                        size_t* length) {
  return c_api::guarded([&] {
    c_api::require(mask, "quire_block_mask_to_string", "mask");
    if (capacity > 0) c_api::require(text, "quire_block_mask_to_string", "text");
    const std::string all = mask->mask.to_string();
    if (length != nullptr) *length = all.size();
    if (capacity == 0) return;
    const std::size_t shown = std::min(all.size(), capacity - 1);
    std::memcpy(text, all.data(), shown);
    text[shown] = '\0';
  });
}

void quire_block_mask_free(quire_block_mask* mask) { delete mask; }
