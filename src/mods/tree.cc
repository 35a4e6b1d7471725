// Tree mask of speculative decoding: a tree of drafted tokens after a context; each token sees the
// context, its ancestors and itself. Miao et al., "SpecInfer", 2023; Cai et al., "Medusa", 2024.
// Mods layer.
#include <algorithm>
#include <vector>

#include "mods/arguments.h"
#include "quire/error.h"
#include "quire/mods.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"

namespace quire::mods {
namespace {

// A depth-first walk numbers token i as order[i], and its descendants up to end[i] - 1. So j sees i
// exactly if order[i] <= order[j] < end[i]: two numbers per token and comparisons of intervals,
// whatever the shape of the tree.
struct Walk {
  Tensor order, end;  // i32, shape of the parents
};

// Walks one tree of n parents. The tokens are first ordered with parents before children, which
// fails if there is a cycle; then subtree sizes are summed backwards and numbers assigned forwards.
void walk_tree(std::span<const std::int64_t> parents, std::int32_t* order, std::int32_t* end) {
  const std::int64_t n = parents.size();
  const auto parent = [&](std::int64_t i) { return parents[i]; };
  // The children of a parent are a linked list: first_child[p], then next[..]; the last entry is
  // for the roots.
  std::vector<std::int64_t> first_child(parents.size() + 1, -1), next(parents.size(), -1);
  for (std::int64_t i = n; i-- > 0;) {
    if (parent(i) < -1 || parent(i) >= n)
      fail(ErrorKind::value, "tree", "parents[{}] must be -1 or below {}; got {}", i, n, parent(i));
    std::int64_t& first = first_child[parent(i) < 0 ? n : parent(i)];
    next[i] = first;
    first = i;
  }
  std::vector<std::int64_t> reached;  // parents before children
  const auto add_children = [&](std::int64_t p) {
    for (std::int64_t i = first_child[p]; i >= 0; i = next[i]) reached.push_back(i);
  };
  add_children(n);
  for (std::size_t k = 0; k < reached.size(); ++k) add_children(reached[k]);
  if (reached.size() != parents.size())
    fail(ErrorKind::value, "tree", "parents have a cycle; {} of {} tokens lead to a root",
         reached.size(), n);

  std::fill(end, end + n, 1);  // sizes, until the numbers are known
  for (std::size_t k = reached.size(); k-- > 0;)
    if (const std::int64_t p = parent(reached[k]); p >= 0) end[p] += end[reached[k]];
  std::vector<std::int32_t> free(parents.size() + 1, 0);  // next free number below each parent
  for (const std::int64_t i : reached) {
    std::int32_t& place = free[parent(i) < 0 ? n : parent(i)];
    order[i] = place;
    free[i] = place + 1;
    place += end[i];
    end[i] = place;
  }
}

bool parents_come_first(const Tensor& parents) {
  const std::int64_t n = parents.dim(-1);
  for (std::int64_t i = 0; i < parents.numel(); ++i)
    if (parents.data_as<std::int64_t>()[i] >= i % n) return false;
  return true;
}

Walk walk_trees(const Tensor& parents) {
  const std::size_t n = parents.dim(-1);
  Walk walk = {Tensor::empty(parents.shape(), DType::i32),
               Tensor::empty(parents.shape(), DType::i32)};
  for (std::size_t start = 0; start < static_cast<std::size_t>(parents.numel()); start += n)
    walk_tree({parents.data_as<std::int64_t>() + start, n},
              walk.order.data_as<std::int32_t>() + start, walk.end.data_as<std::int32_t>() + start);
  return walk;
}

// With the context as a chain above the roots,
//   place(i) = where(i < context, i, context + order[i - context])
//   end(i)   = context + end[i - context]
//   (place(kv_idx) <= place(q_idx)) & ((kv_idx < context) | (place(q_idx) < end(kv_idx)))
template <class Context>  // of a batch entry
MaskMod tree_mask(const Buffer& parents, Context context_of) {
  check_rank("tree", parents, 1, 2, "[n] or [batch, n]");
  check_has_data("tree", parents);
  if (parents.shape()[parents.shape().rank() - 1] == 0) return causal();  // only the context
  const Tensor wide = to(parents.view(), DType::i64);
  const Walk walk = walk_trees(wide);
  const Buffer order(walk.order, {.name = "order"}), end(walk.end, {.name = "end"});
  const MaskMod below = [&](auto b, auto, auto q, auto kv) {
    const auto context = context_of(b);
    const auto at = [&](const Buffer& table, const IntExpr& i) {
      const auto token = maximum(i - context, 0);
      const auto read =
          table.shape().rank() == 1 ? table[token] : table(or_only(b, table, 0), token);
      return context + read;
    };
    const auto q_place = where(q < context, q, at(order, q));
    const auto kv_place = where(kv < context, kv, at(order, kv));
    return (kv_place <= q_place) & ((kv < context) | (q_place < at(end, kv)));
  };
  // In the usual order, parents before children, the mask is also causal; saying so lets half of
  // the blocks be proved empty whatever the order of the walk.
  return parents_come_first(wide) ? below & causal() : below;
}

}  // namespace

MaskMod tree(const Table& parents, std::int64_t context) {
  const FloatEnv float_env;
  check_at_least("tree", "context", context, 0);
  return tree_mask(integer_table("tree", "parents", parents),
                   [&](const IntExpr&) { return context; });
}

MaskMod tree(const Table& parents, const Table& contexts) {
  const FloatEnv float_env;
  const Buffer table = batch_table("tree", "contexts", contexts);
  return tree_mask(integer_table("tree", "parents", parents),
                   [&](const IntExpr& b) { return of_batch(table, b); });
}

}  // namespace quire::mods
