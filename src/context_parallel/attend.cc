// attend: few queries, the same on all ranks, over keys that are spread over them. Ranks exchange
// states of rows, not keys. Context_parallel layer.
#include <algorithm>
#include <cstring>
#include <exception>
#include <limits>
#include <utility>

#include "context_parallel/agreement.h"
#include "kernels/row_states.h"
#include "quire/attention.h"
#include "quire/context_parallel.h"
#include "quire/error.h"
#include "runtime/ceil_div.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"

namespace quire::context_parallel {
namespace {

constexpr const char* kAttend = "context_parallel.attend";

// Where this rank's keys are in their sequences, for mods: key j of sequence b is key first[b, j //
// piece] + j % piece of the whole.
class Positions {
 public:
  Positions(std::span<const Shards> shards, int rank) : piece_(shards[0].piece_length()) {
    std::int64_t most = 1;
    for (const Shards& of : shards) most = std::max(most, ceil_div(of.tokens(rank), piece_));
    Tensor first({static_cast<std::int64_t>(shards.size()), most}, DType::i64);
    for (std::size_t b = 0; b < shards.size(); ++b)
      for (std::int64_t i = 0; i < shards[b].pieces(); ++i)
        if (shards[b].owners()[static_cast<std::size_t>(i)] == rank)
          first.at<std::int64_t>({static_cast<std::int64_t>(b), shards[b].place(i) / piece_}) =
              shards[b].piece(i).begin;
    first_ = Buffer(first, {.name = "first"});
  }

  template <class Mod>
  Mod in_place(const Mod& mod) const {
    const detail::ModArguments of = detail::mod_arguments();
    const auto key = (*first_)(of.b, floor_div(of.kv_idx, piece_)) + of.kv_idx % piece_;
    return Mod(Formula(detail::apply(mod.formula(), {of.score, of.b, of.h, of.q_idx, key})));
  }

 private:
  std::int64_t piece_;
  std::optional<Buffer> first_;
};

void check(const ConstTensorView& q, const PagedKeys& keys, std::span<const Shards> shards,
           const Communicator& group, const AttendOptions& options) {
  if (q.rank() != 4)
    fail(ErrorKind::value, kAttend, "q must be [sequences, q_heads, queries, dim]; got {}",
         to_string(q.shape()));
  if (static_cast<std::int64_t>(shards.size()) != q.dim(0) || shards.empty())
    fail(ErrorKind::value, kAttend, "there must be shards for each of {} sequences; got {}",
         q.dim(0), shards.size());
  if (!options.q_begin.empty() && options.q_begin.size() != shards.size())
    fail(ErrorKind::value, kAttend, "q_begin must be one number for each of {} sequences; got {}",
         shards.size(), options.q_begin.size());
  if (keys.lengths.rank() != 1 || keys.lengths.dim(0) != q.dim(0))
    fail(ErrorKind::value, kAttend, "lengths must be one number for each of {} sequences; got {}",
         q.dim(0), to_string(keys.lengths.shape()));
  for (std::size_t i = 0; i < shards.size(); ++i) {
    if (shards[i].ranks() != group.size() || shards[i].piece_length() != shards[0].piece_length())
      fail(ErrorKind::value, kAttend,
           "shards of all sequences must be for the {} ranks of the group, with pieces of one "
           "length; those of sequence {} are for {}, with pieces of {}",
           group.size(), i, shards[i].ranks(), shards[i].piece_length());
    const std::int64_t here = keys.lengths.load_int({static_cast<std::int64_t>(i)});
    if (here != shards[i].tokens(group.rank()))
      fail(ErrorKind::value, kAttend, "rank {} holds {} tokens of sequence {}; got {} keys",
           group.rank(), shards[i].tokens(group.rank()), i, here);
  }
}

// States of rows as they are sent: [count][rows](m, l, O), without the padding states have in
// memory.
template <class T>
class Packed {
 public:
  Packed(std::int64_t rows, std::int64_t dims) : rows_(rows), dims_(dims) {}

  std::size_t size(std::int64_t count) const {
    return static_cast<std::size_t>(count * rows_ * (dims_ + 2));
  }
  void pack(const T* state, T* to, std::int64_t at, std::int64_t row) const {
    T* const here = to + (at * rows_ + row) * (dims_ + 2);
    std::copy_n(state, 2, here);
    std::copy_n(state + kernels::kRowStateHead, dims_, here + 2);
  }
  void unpack(const T* from, std::int64_t at, std::int64_t row, T* state) const {
    const T* const here = from + (at * rows_ + row) * (dims_ + 2);
    std::copy_n(here, 2, state);
    std::copy_n(here + 2, dims_, state + kernels::kRowStateHead);
  }

 private:
  std::int64_t rows_, dims_;
};

std::int64_t splits_of(std::int64_t tokens) { return ceil_div(tokens, kPieceUnit); }

// Gathers the states of all ranks and puts them in the order of their keys: one tensor for each
// split of the longest sequence, or for each rank.
template <class T>
std::vector<Tensor> gather(const Tensor& mine, std::span<const Shards> shards, Communicator& group,
                           const AttentionProblem& problem, bool is_exact) {
  const std::int64_t rows = problem.batch * problem.q_heads * problem.q_len;
  const std::int64_t rows_of_sequence = problem.q_heads * problem.q_len;
  const std::int64_t state = kernels::row_state_size(static_cast<int>(problem.v_head_dim));
  const Packed<T> packed(rows, problem.v_head_dim);
  std::int64_t most = 1, longest = group.size();
  if (is_exact) {
    longest = most = 0;
    for (const Shards& of : shards) {
      longest = std::max(longest, splits_of(of.length()));
      for (int rank = 0; rank < of.ranks(); ++rank)
        most = std::max(most, splits_of(of.tokens(rank)));
    }
  }
  std::vector<T> own(packed.size(most)), all(own.size() * static_cast<std::size_t>(group.size()));
  for (std::int64_t i = 0; i < most; ++i)
    for (std::int64_t row = 0; row < rows; ++row)
      own[static_cast<std::size_t>((i * rows + row) * (problem.v_head_dim + 2))] =
          -std::numeric_limits<T>::infinity();
  const std::int64_t splits = is_exact ? mine.dim(3) : 1;
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t i = 0; i < splits; ++i)
      packed.pack(mine.data_as<T>() + (row * splits + i) * state, own.data(), i, row);
  group.all_gather(std::as_bytes(std::span(own)), std::as_writable_bytes(std::span(all)));
  Shape shape = problem.stats_shape();
  shape.push_back(state);
  std::vector<Tensor> in_order;
  for (std::int64_t i = 0; i < longest; ++i) {
    in_order.push_back(Tensor(shape, problem.compute_type()));
    T* const to = in_order.back().data_as<T>();
    for (std::int64_t row = 0; row < rows; ++row) {
      const Shards& of = shards[static_cast<std::size_t>(row / rows_of_sequence)];
      to[row * state] = -std::numeric_limits<T>::infinity();
      std::int64_t rank = i, at = 0;
      if (is_exact) {
        if (i >= splits_of(of.length())) continue;
        const std::int64_t token = i * kPieceUnit, piece = token / of.piece_length();
        rank = of.owners()[static_cast<std::size_t>(piece)];
        at = (of.place(piece) + token - of.piece(piece).begin) / kPieceUnit;
      }
      packed.unpack(all.data() + static_cast<std::size_t>(rank) * own.size(), at, row,
                    to + row * state);
    }
  }
  return in_order;
}

}  // namespace

Output attend(const ConstTensorView& q, const PagedKeys& keys, std::span<const Shards> shards,
              Communicator& group, const AttendOptions& options) {
  const FloatEnv float_env;
  const bool is_exact = options.mode == AttendMode::kExact;
  AttentionProblem problem;
  Tensor mine;
  Agreement agreement(kAttend, group);
  // Only the last exchange depends on other ranks: errors before it are reported there.
  agreement.check([&] {
    check(q, keys, shards, group, options);
    AttentionOptions given{.score_mod = options.score_mod,
                           .mask_mod = options.mask_mod,
                           .scale = options.scale,
                           .enable_gqa = true,
                           .q_begin = options.q_begin,
                           .executor = options.executor};
    if (given.q_begin.empty())
      for (const Shards& of : shards)
        given.q_begin.push_back(std::max<std::int64_t>(of.length() - q.dim(2), 0));
    const Positions positions(shards, group.rank());
    if (given.score_mod.has_value()) given.score_mod = positions.in_place(*given.score_mod);
    if (given.mask_mod.has_value()) given.mask_mod = positions.in_place(*given.mask_mod);
    problem = AttentionProblem::paged(q, keys, given, kAttend);
    problem.states = is_exact ? KeptStates::kSplits : KeptStates::kRunning;
    mine = Tensor(problem.states_shape(), problem.compute_type());
    run_attention(problem, q, keys.k, keys.v, {.out = {}, .states = mine.view()});
    agreement.add("the mode", static_cast<std::int64_t>(options.mode));
    agreement.add("the number of sequences", problem.batch);
    agreement.add("the number of query heads", problem.q_heads);
    agreement.add("the number of queries", problem.q_len);
    agreement.add("the head dim of value", problem.v_head_dim);
    agreement.add("the dtype of computation", static_cast<std::int64_t>(problem.compute_type()));
    std::int64_t hash = hash_bytes(nullptr, 0);
    for (const Shards& of : shards) {
      const std::int64_t sizes[] = {of.length(), of.piece_length()};
      hash = hash_bytes(sizes, sizeof(sizes), static_cast<std::uint64_t>(hash));
      hash = hash_bytes(of.owners().data(), of.owners().size() * sizeof(int),
                        static_cast<std::uint64_t>(hash));
    }
    agreement.add("the shards", hash);
    agreement.add("the score mod", options.score_mod ? options.score_mod->to_string() : "");
    agreement.add("the mask mod", options.mask_mod ? options.mask_mod->to_string() : "");
  });
  const std::vector<Tensor> states = problem.is_f64()
                                         ? gather<double>(mine, shards, group, problem, is_exact)
                                         : gather<float>(mine, shards, group, problem, is_exact);
  Output made{Tensor::empty(problem.out_shape(), problem.q_dtype),
              Tensor::empty(problem.stats_shape(), problem.compute_type())};
  std::vector<ConstTensorView> views(states.begin(), states.end());
  finish_states(problem, views, {.out = made.out.view(), .lse = made.lse.view()});
  return made;
}

Output attend(const KVCache& cache, std::int64_t layer, std::span<const SequenceId> sequences,
              const ConstTensorView& q, std::span<const Shards> shards, Communicator& group,
              const AttendOptions& options) {
  const FloatEnv float_env;
  Tensor lengths, table;
  PagedKeys keys;
  // A stale handle is this rank's mistake, and all ranks must be told.
  Agreement(kAttend, group).check([&] {
    const std::int64_t of = cache.group_of(layer);
    const auto count = static_cast<std::int64_t>(sequences.size());
    std::size_t most = 1;
    for (const SequenceId sequence : sequences)
      most = std::max(most, cache.view(sequence, of).pages.size());
    lengths = Tensor({count}, DType::i64);
    table = Tensor({count, static_cast<std::int64_t>(most)}, DType::i32);
    for (std::int64_t i = 0; i < count; ++i) {
      const SequenceView view = cache.view(sequences[static_cast<std::size_t>(i)], of);
      lengths.data_as<std::int64_t>()[i] = view.length;
      std::copy(view.pages.begin(), view.pages.end(),
                table.data_as<std::int32_t>() + i * static_cast<std::int64_t>(most));
    }
    keys = {cache.keys(layer), cache.values(layer), table, lengths};
  });
  return attend(q, keys, shards, group, options);
}

}  // namespace quire::context_parallel
