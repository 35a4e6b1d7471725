// A program for `mpirun -n N`: context parallel attention over MPI has the bits of one process,
// which every rank is for the comparison, and mistakes are errors on every rank. Tests only.
#include "quire/context_parallel.h"

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "quire/error.h"
#include "quire/flex_attention.h"
#include "quire/flex_attention_backward.h"
#include "quire/kv_cache.h"
#include "quire/mods.h"
#include "quire/mpi_communicator.h"

namespace {

using namespace quire;
namespace cp = context_parallel;

int failures = 0, cases = 0;

void expect(bool is_right, const std::string& what) {
  if (is_right) return;
  std::printf("wrong: %s\n", what.c_str());
  ++failures;
}

Tensor numbers(const Shape& shape, DType dtype, unsigned seed) {
  Tensor made(shape, DType::f32);
  unsigned state = seed * 2654435761u + 1;
  for (std::int64_t i = 0; i < made.numel(); ++i) {
    state = state * 1664525u + 1013904223u;
    made.data_as<float>()[i] = static_cast<float>(state >> 8) / 8388608.0f - 1.0f;
  }
  return made.to(dtype);
}

bool same(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() &&
         std::memcmp(a.data(), b.data(),
                     static_cast<std::size_t>(a.numel()) * dtype_size(a.dtype())) == 0;
}

double difference(const Tensor& a, const Tensor& b) {
  const Tensor x = a.to(DType::f64), y = b.to(DType::f64);
  double most = 0;
  for (std::int64_t i = 0; i < x.numel(); ++i)
    most = std::fmax(most, std::fabs(x.data_as<double>()[i] - y.data_as<double>()[i]));
  return most;
}

struct Case {
  std::string name;
  DType dtype = DType::f32;
  std::int64_t length = 3300, q_heads = 4, kv_heads = 2;
  std::optional<ScoreMod> score_mod = {};
  std::optional<BlockMask> block_mask = {};
};

void compare_gradients(Communicator& group, const Case& c, const cp::Options& options,
                       const cp::Shards& shards, const BackwardInputs& whole,
                       const AttentionGradients& want) {
  const auto mine = [&](const ConstTensorView& x) { return cp::shard(x, shards, group.rank()); };
  const Tensor q = mine(whole.q), k = mine(whole.k.data), v = mine(whole.v.data),
               out = mine(whole.out), lse = mine(whole.lse), d_out = mine(*whole.d_out);
  const cp::Gradients found = cp::flex_attention_backward(
      {.q = q, .k = k, .v = v, .out = out, .lse = lse, .d_out = d_out}, shards, group, options);
  if (options.exchange == cp::Exchange::kHeads) {
    expect(same(found.q, mine(*want.q)), c.name + " bits of d_q");
    expect(same(found.k, mine(*want.k)), c.name + " bits of d_k");
    expect(same(found.v, mine(*want.v)), c.name + " bits of d_v");
    return;
  }
  const double bound = c.dtype == DType::bf16 ? 0.05 : 1e-4;
  expect(difference(found.q, mine(*want.q)) < bound, c.name + " d_q");
  expect(difference(found.k, mine(*want.k)) < bound, c.name + " d_k");
  expect(difference(found.v, mine(*want.v)) < bound, c.name + " d_v");
}

void compare(Communicator& group, const Case& c, bool with_gradients) {
  const Tensor q = numbers({1, c.q_heads, c.length, 16}, c.dtype, 1),
               k = numbers({1, c.kv_heads, c.length, 16}, c.dtype, 2),
               v = numbers({1, c.kv_heads, c.length, 24}, c.dtype, 3);
  AuxOutput aux;
  AttentionOptions alone{
      .score_mod = c.score_mod, .enable_gqa = true, .return_aux = {.lse = true}, .aux = &aux};
  if (c.block_mask.has_value()) alone.block_mask = *c.block_mask;
  const Tensor out = quire::flex_attention(q, k, v, alone);
  const cp::Shards shards = c.block_mask ? cp::plan_shards(*c.block_mask, group.size())
                                         : cp::plan_shards(c.length, group.size());
  const auto mine = [&](const Tensor& x) { return cp::shard(x, shards, group.rank()); };
  for (const cp::Exchange exchange : {cp::Exchange::kKeys, cp::Exchange::kHeads}) {
    const cp::Options options{.score_mod = c.score_mod,
                              .block_mask = c.block_mask,
                              .enable_gqa = true,
                              .exchange = exchange};
    const cp::Output got = cp::flex_attention(mine(q), mine(k), mine(v), shards, group, options);
    expect(same(got.out, mine(out)), c.name + " out");
    expect(same(got.lse, mine(*aux.lse)), c.name + " lse");
    if (!with_gradients) continue;
    const Tensor d_out = numbers(out.shape(), c.dtype, 4);
    const BackwardInputs whole{.q = q, .k = k, .v = v, .out = out, .lse = *aux.lse, .d_out = d_out};
    compare_gradients(group, c, options, shards, whole,
                      quire::flex_attention_backward(whole, {.forward = alone}));
  }
  ++cases;
}

// A rule with a table, over every mask.
ScoreMod biased(std::int64_t length) {
  const Buffer table(numbers({length}, DType::f32, 9), {.name = "table"});
  return ScoreMod::parse("score + 0.1 * table[kv_idx] + 0.001 * h * (kv_idx - q_idx)",
                         {{"table", table}});
}

void compare_gallery(Communicator& group) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const mods::GalleryEntry& entry : mods::gallery()) {
      Case c{.name = entry.name, .dtype = dtype, .length = 2111};
      const mods::GallerySizes sizes{.q_len = c.length, .kv_len = c.length, .heads = c.q_heads};
      if (entry.kind == mods::GalleryEntry::Kind::kMask)
        c.block_mask = create_block_mask(entry.mask_mod(sizes), 1, c.q_heads, c.length, c.length);
      else
        c.score_mod = entry.score_mod(sizes);
      compare(group, c, false);
      if (!c.block_mask.has_value()) continue;
      c.score_mod = biased(c.length);
      c.name += " with a bias";
      compare(group, c, false);
    }
  }
}

// Decode over pages: exact states have the bits of one process.
void compare_decode(Communicator& group, DType dtype, std::int64_t length, std::int64_t queries,
                    const std::optional<MaskMod>& mask) {
  constexpr std::int64_t kHeads = 2, kDim = 16;
  const Tensor k = numbers({length, kHeads, kDim}, dtype, 2),
               v = numbers({length, kHeads, kDim}, dtype, 3),
               q = numbers({1, 4, queries, kDim}, dtype, 1);
  std::vector<int> owners;
  for (std::int64_t at = 0; at < length; at += cp::kPieceUnit)
    owners.push_back(static_cast<int>(at / cp::kPieceUnit * 2 + 1) % group.size());
  const std::vector<cp::Shards> shards{{length, group.size(), cp::kPieceUnit, owners}};
  KVCache cache({.kv_heads = kHeads, .head_dim = kDim, .dtype = dtype, .n_pages = 1000});
  const std::vector<SequenceId> handles{cache.create()};
  const Tensor mine_k = cp::shard(k, shards[0], group.rank(), 0),
               mine_v = cp::shard(v, shards[0], group.rank(), 0);
  const NewTokens step[] = {{handles[0], mine_k.dim(0)}};
  cache.append(step);
  cache.write(0, step, mine_k, mine_v);
  const ScoreMod bias = biased(length);
  const cp::Output got =
      cp::attend(cache, 0, handles, q, shards, group, {.score_mod = bias, .mask_mod = mask});
  AuxOutput aux;
  const auto of = [](const Tensor& x) { return x.view().transpose(0, 1).unsqueeze(0); };
  AttentionOptions alone{.score_mod = bias,
                         .mask_mod = mask,
                         .enable_gqa = true,
                         .q_begin = {length - queries},
                         .return_aux = {.lse = true},
                         .aux = &aux};
  expect(same(got.out, quire::flex_attention(q, of(k), of(v), alone)), "decode out");
  expect(same(got.lse, *aux.lse), "decode lse");
  ++cases;
}

void disagree(Communicator& group) {
  const cp::Shards shards = cp::plan_shards(2100, group.size());
  const std::int64_t tokens = shards.tokens(group.rank()), dim = group.rank() == 0 ? 8 : 16;
  const Tensor x({1, 1, tokens, dim}, DType::f32);
  try {
    cp::flex_attention(x, x, x, shards, group);
    expect(group.size() == 1, "head dims that differ are refused");
  } catch (const Error& error) {
    expect(std::string(error.what()).find("ranks disagree about the head dim") != std::string::npos,
           error.what());
  }
}

// Rank 1 does not come: the others wait for no longer than they were told.
int run_absent(Communicator& group) {
  if (group.rank() == 1) {
    std::this_thread::sleep_for(std::chrono::seconds(6));
  } else {
    const cp::Shards shards = cp::plan_shards(2100, group.size());
    const Tensor x({1, 1, shards.tokens(group.rank()), 8}, DType::f32);
    try {
      cp::flex_attention(x, x, x, shards, group);
    } catch (const Error& error) {
      std::printf("rank %d: %s\n", group.rank(), error.what());
    }
  }
  std::fflush(stdout);
  std::_Exit(0);  // what was begun cannot end
}

}  // namespace

// context_parallel [--gallery | --absent]
int main(int argc, char** argv) {
  const MpiSession session(&argc, &argv);
  const std::string asked = argc > 1 ? argv[1] : "";
  const auto group = make_mpi_communicator({.timeout_seconds = asked == "--absent" ? 2.0 : 120.0});
  if (asked == "--absent") return run_absent(*group);
  if (asked == "--gallery") compare_gallery(*group);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    Case c{.name = "causal", .dtype = dtype, .score_mod = biased(3300)};
    c.block_mask = create_block_mask(mods::causal(), 1, 1, c.length, c.length);
    compare(*group, c, true);
    c.name = "window";
    c.block_mask =
        create_block_mask(mods::causal() & mods::sliding_window(900), 1, 1, c.length, c.length);
    compare(*group, c, true);
    for (const std::int64_t queries : {1, 5}) {
      compare_decode(*group, dtype, 5000, queries, mods::causal());
      compare_decode(*group, dtype, 2049, queries, mods::causal() & mods::sliding_window(1300));
      compare_decode(*group, dtype, 700, queries, std::nullopt);
    }
  }
  disagree(*group);
  std::vector<int> of_ranks(static_cast<std::size_t>(group->size()));
  group->all_gather(std::as_bytes(std::span(&failures, 1)),
                    std::as_writable_bytes(std::span(of_ranks)));
  int all = 0;
  for (const int one : of_ranks) all += one;
  if (group->rank() == 0)
    std::printf("%d ranks, %d cases: %s\n", group->size(), cases,
                all == 0 ? "the bits of one" : "WRONG");
  return all == 0 ? 0 : 1;
}
