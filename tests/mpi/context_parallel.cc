// A program for `mpirun -n N`: context parallel attention over MPI has the bits of one process,
// which every rank is for the comparison, and mistakes are errors on every rank. Tests only.
#include "quire/context_parallel.h"

#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>

#include "quire/error.h"
#include "quire/flex_attention.h"
#include "quire/flex_attention_backward.h"
#include "quire/mods.h"
#include "quire/mpi_communicator.h"

namespace {

using namespace quire;
namespace cp = context_parallel;

int failures = 0;

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

void compare(Communicator& group, const std::string& name, const MaskMod& rule, DType dtype) {
  constexpr std::int64_t kLength = 3300;
  const Tensor q = numbers({1, 4, kLength, 16}, dtype, 1),
               k = numbers({1, 2, kLength, 16}, dtype, 2),
               v = numbers({1, 2, kLength, 16}, dtype, 3);
  const cp::Options options{.score_mod = ScoreMod::parse("score + 0.001 * (kv_idx - q_idx)"),
                            .block_mask = create_block_mask(rule, 1, 1, kLength, kLength),
                            .enable_gqa = true};
  AuxOutput aux;
  const AttentionOptions alone{.score_mod = options.score_mod,
                               .block_mask = *options.block_mask,
                               .enable_gqa = true,
                               .return_aux = {.lse = true},
                               .aux = &aux};
  const Tensor out = quire::flex_attention(q, k, v, alone);
  const cp::Shards shards = cp::plan_shards(*options.block_mask, group.size());
  const auto mine = [&](const Tensor& x) { return cp::shard(x, shards, group.rank()); };
  const Tensor ql = mine(q), kl = mine(k), vl = mine(v);
  const cp::Output got = cp::flex_attention(ql, kl, vl, shards, group, options);
  expect(same(got.out, mine(out)), name + " out");
  expect(same(got.lse, mine(*aux.lse)), name + " lse");
  const Tensor d_out = numbers(out.shape(), dtype, 4), d_mine = mine(d_out);
  const AttentionGradients want = quire::flex_attention_backward(
      {.q = q, .k = k, .v = v, .out = out, .lse = *aux.lse, .d_out = d_out}, {.forward = alone});
  const cp::Gradients found = cp::flex_attention_backward(
      {.q = ql, .k = kl, .v = vl, .out = got.out, .lse = got.lse, .d_out = d_mine}, shards, group,
      options);
  const double bound = dtype == DType::bf16 ? 0.05 : 1e-4;
  expect(difference(found.q, mine(*want.q)) < bound, name + " d_q");
  expect(difference(found.k, mine(*want.k)) < bound, name + " d_k");
  expect(difference(found.v, mine(*want.v)) < bound, name + " d_v");
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

}  // namespace

int main(int argc, char** argv) {
  const MpiSession session(&argc, &argv);
  const auto group = make_mpi_communicator({.timeout_seconds = 120});
  for (const DType dtype : {DType::f32, DType::bf16}) {
    compare(*group, "causal", mods::causal(), dtype);
    compare(*group, "window", mods::causal() & mods::sliding_window(900), dtype);
  }
  disagree(*group);
  int all = failures;
  std::vector<int> of_ranks(static_cast<std::size_t>(group->size()));
  group->all_gather(std::as_bytes(std::span(&failures, 1)),
                    std::as_writable_bytes(std::span(of_ranks)));
  all = 0;
  for (const int one : of_ranks) all += one;
  if (group->rank() == 0)
    std::printf("%d ranks: %s\n", group->size(), all == 0 ? "the bits of one" : "WRONG");
  return all == 0 ? 0 : 1;
}
