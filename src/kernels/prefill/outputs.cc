// Outputs of a tile of keys, panel by panel: which runs of keys are multiplied, and weights as
// pairs where products take these. Kernels layer.
#include <algorithm>
#include <type_traits>

#include "kernels/prefill/item.h"

namespace quire::kernels {
namespace {

// The runs of keys that a panel sees, cut where chains end. Pairs: whole groups, as far as the
// tile's `rows` go.
int list_runs(const TileActivity& activity, int panel, int rows, bool pairs,
              ChainRun (&runs)[kKeyGroups]) {
  const int groups = chain_keys(pairs) / kKeyGroup, all = (rows + kKeyGroup - 1) / kKeyGroup;
  int count = 0;
  for (int chain = 0; chain < all; chain += groups) {
    const int first = count;
    for (int g = chain, last = std::min(chain + groups, all); g < last; ++g) {
      const GroupActivity& group = activity.groups[g];
      if (group.empty() || panel < group.panel_begin || panel >= group.panel_end) continue;
      const int begin = pairs ? g * kKeyGroup : group.row_begin;
      const int end = pairs ? std::min(rows, (g + 1) * kKeyGroup) : group.row_end;
      if (count > first && runs[count - 1].value_row + runs[count - 1].rows == begin)
        runs[count - 1].rows += end - begin;
      else
        runs[count++] = {begin, begin, end - begin, false};
    }
    if (count > first) runs[count - 1].ends_chain = true;
  }
  return count;
}

// Queries whose outputs are computed between two prefetches for the next item: the rows of a
// register block of 64 columns (16 are 6 + 5 + 5).
constexpr int kAskQueries = 6;

}  // namespace

// Whether the softmax writes weights as pairs: nothing comes between.
template <class T>
bool Prefill<T>::makes_pairs(const KeyTile& keys) const noexcept {
  return call_.pairs && !drops_ && call_.weights == WeightRule::kSoftmax &&
         keys.value_scales == nullptr && pair_functions(call_).softmax != nullptr;
}

// The outputs of a panel, some queries at a time if something is prefetched in between.
template <class T>
template <class E>
void Prefill<T>::outputs_by_parts(AccumulateArgs<T, E> args,
                                  void (*function)(const AccumulateArgs<T, E>&) noexcept) noexcept {
  int keys = 0;
  for (const ChainRun *run = args.runs, *end = run + args.run_count; run != end; ++run)
    keys += call_.pairs ? 2 * run->rows : run->rows;
  if (!asks_between(keys)) {
    function(args);
    return ask_ahead(keys);
  }
  int left = args.queries;
  for (int parts = (left + kAskQueries - 1) / kAskQueries; parts > 0; --parts) {
    args.queries = (left + parts - 1) / parts;
    function(args);
    left -= args.queries;
    args.weights += args.queries;
    args.out += args.queries * args.out_step;
    if (args.factor != nullptr) args.factor += args.queries;
    if (args.weight_scales != nullptr) args.weight_scales += args.queries;
    ask_ahead(int64_t{keys} * args.queries / kPanel);
  }
}

template <class T>
void Prefill<T>::accumulate(int i, int panel, int rows, const KeyTile& keys) noexcept {
  ChainRun runs[kKeyGroups];
  const int count = list_runs(memory_.activity[i], panel, rows, call_.pairs, runs);
  T* weights = memory_.scores + panel * kScorePanelStep;
  const auto call = [&]<class E>(void (*function)(const AccumulateArgs<T, E>&) noexcept) {
    outputs_by_parts<E>(
        {.runs = runs,
         .run_count = count,
         .weights = reinterpret_cast<const E*>(weights),
         .values = static_cast<const E*>(keys.values),
         .value_step = keys.value_step,
         .queries = std::min(kPanel, item_.tiles[i].queries - panel * kPanel),
         .columns = columns_,
         .out = current(i).o + ptrdiff_t{panel} * kPanel * columns_,
         .out_step = columns_,
         .factor = (live_[i] >> panel & 1) != 0 ? memory_.factor + panel * kPanel : nullptr,
         .weight_scales = memory_.weight_scales},
        function);
  };
  if (!call_.pairs) return call(functions_.accumulate);
  if constexpr (std::is_same_v<T, float>) {
    // Rows of a group that were not computed have weight 0 and values of 0.
    const PairFunctions& pairs = pair_functions(call_);
    const bool paired = makes_pairs(keys);
    if (!paired)
      pairs.pair_weights({.weights = weights,
                          .runs = runs,
                          .run_count = count,
                          .value_scales = keys.value_scales,
                          .scales = memory_.weight_scales,
                          .shift = integer_weight_shift(call_.v_coding)});
    for (ChainRun* run = runs; run != runs + count; ++run) {
      if (paired) run->weight_row /= 2;
      run->value_row /= 2;
      run->rows = (run->rows + 1) / 2;
    }
    if (paired) weights = reinterpret_cast<T*>(memory_.pairs);
    call(pairs.accumulate);
  }
}

template bool Prefill<float>::makes_pairs(const KeyTile&) const noexcept;
template bool Prefill<double>::makes_pairs(const KeyTile&) const noexcept;
template void Prefill<float>::accumulate(int, int, int, const KeyTile&) noexcept;
template void Prefill<double>::accumulate(int, int, int, const KeyTile&) noexcept;

}  // namespace quire::kernels
