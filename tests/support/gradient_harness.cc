// Tiles of a gradient program. Tests only.
#include "tests/support/gradient_harness.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <thread>

#include "kernels/backward/gradient_runner.h"
#include "kernels/dispatch.h"
#include "kernels/prefill/forward_functions.h"

namespace quire::testing {

using formula::IndexRange;
using kernels::kPanel;
using kernels::kQueryTile;
using kernels::ScoreTile;

namespace {

std::int64_t length(const IndexRange& range) { return range.last - range.first + 1; }

struct Item {
  int ordinal;
  std::int64_t b, h, kv, keys;
};

template <class T>
class Run {
 public:
  Run(const GradientInputs& inputs, const GradientRunOptions& options, GradientResult& result)
      : inputs_(inputs),
        options_(options),
        result_(result),
        sizes_{length(inputs.extents.q), std::min(options.chunk, length(inputs.extents.kv))},
        turns_(1 + static_cast<std::size_t>((sizes_.q_len + kQueryTile - 1) / kQueryTile)) {
    const formula::Rectangle& all = inputs.extents;
    for (std::int64_t kv = all.kv.first; kv <= all.kv.last; kv += options.chunk)
      for (std::int64_t b = all.b.first; b <= all.b.last; ++b)
        for (std::int64_t h = all.h.first; h <= all.h.last; ++h)
          items_.push_back({static_cast<int>(items_.size()), b, h, kv,
                            std::min(options.chunk, all.kv.last - kv + 1)});
    for (const std::int64_t size : result.compiled.program.target_sizes)
      gradients_.emplace_back(static_cast<std::size_t>(size), T{0});
    for (std::vector<T>& gradient : gradients_) pointers_.push_back(gradient.data());
    targets_ = {pointers_.data(), turns_.data(), turns_.data() + 1,
                static_cast<int>(turns_.size()) - 1};
  }

  void run() {
    std::vector<std::thread> threads;
    for (int i = 0; i < options_.threads; ++i) threads.emplace_back([this] { work(); });
    for (std::thread& thread : threads) thread.join();
    for (const std::vector<T>& gradient : gradients_)
      result_.gradients.emplace_back(gradient.begin(), gradient.end());
  }

 private:
  std::size_t place(const Item& item, std::int64_t q, std::int64_t kv) const {
    const formula::Rectangle& all = inputs_.extents;
    return static_cast<std::size_t>(
        (((item.b - all.b.first) * length(all.h) + item.h - all.h.first) * length(all.q) + q -
         all.q.first) *
            length(all.kv) +
        kv - all.kv.first);
  }

  void work() {
    const std::size_t bytes =
        kernels::gradient_scratch_bytes(result_.compiled.program, sizes_) + 64;
    const std::unique_ptr<char, decltype(&std::free)> scratch(
        static_cast<char*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)), &std::free);
    std::memset(scratch.get(), 0xff, bytes);
    kernels::GradientRunner runner(result_.compiled.program, kernels::table_for(options_.isa),
                                   targets_, sizes_, scratch.get());
    for (std::size_t i = next_++; i < items_.size(); i = next_++) run_item(runner, items_[i]);
    const std::lock_guard lock(mutex_);
    if (runner.fault().before(result_.fault)) result_.fault = runner.fault();
  }

  void run_item(kernels::GradientRunner& runner, const Item& item) {
    const IndexRange q = inputs_.extents.q;
    runner.begin_head({item.ordinal, q.first, length(q), item.kv, item.keys});
    const std::int64_t tiles = (length(q) + kQueryTile - 1) / kQueryTile;
    for (std::int64_t i = tiles - 1; i >= 0; --i) {
      const std::int64_t first = q.first + i * kQueryTile;
      const int lanes = static_cast<int>(std::min<std::int64_t>(kQueryTile, q.last - first + 1));
      for (std::int64_t key = 0; key < item.keys; key += options_.max_rows)
        run_tile(runner, item, first, lanes, item.kv + key,
                 static_cast<int>(std::min<std::int64_t>(options_.max_rows, item.keys - key)));
    }
    runner.end_head();
  }

  // Scores, slopes and d_modified of a tile, [panel][row][16], as the kernels have them.
  struct Tile {
    Tile() : numbers(static_cast<std::size_t>(kernels::kQueryPanels * kernels::kScorePanelStep)) {}
    std::vector<T> numbers;
    ScoreTile view() {
      const auto bytes = static_cast<std::ptrdiff_t>(sizeof(T));
      return {.data = numbers.data(),
              .row_step = kPanel * bytes,
              .group_step = 0,
              .panel_step = kernels::kScorePanelStep * bytes};
    }
    T& at(int row, int lane) {
      return numbers[static_cast<std::size_t>(lane / kPanel * kernels::kScorePanelStep +
                                              row * kPanel + lane % kPanel)];
    }
  };

  void run_tile(kernels::GradientRunner& runner, const Item& item, std::int64_t q, int lanes,
                std::int64_t kv, int rows) {
    constexpr T kNan = std::numeric_limits<T>::quiet_NaN();
    Tile scores, slopes, d_modified;
    std::fill(slopes.numbers.begin(), slopes.numbers.end(), kNan);
    std::vector<std::uint64_t> words(static_cast<std::size_t>(rows));
    for (int row = 0; row < rows; ++row) {
      for (int lane = 0; lane < lanes; ++lane) {
        const bool seen = !inputs_.visible || inputs_.visible(item.b, item.h, q + lane, kv + row);
        if (seen) words[static_cast<std::size_t>(row)] |= std::uint64_t{1} << lane;
        scores.at(row, lane) =
            seen ? static_cast<T>(inputs_.score(item.b, item.h, q + lane, kv + row)) : kNan;
        if (seen)
          d_modified.at(row, lane) =
              static_cast<T>(inputs_.d_modified(item.b, item.h, q + lane, kv + row));
      }
    }
    kernels::TileCoords coords;
    coords.start[0] = item.b;
    coords.start[1] = item.h;
    coords.start[2] = q;
    coords.start[3] = kv;
    coords.rows = rows;
    coords.lanes = lanes;
    runner.begin(coords);
    const std::uint64_t* const visible = inputs_.visible ? words.data() : nullptr;
    const int half = rows / 2, panels = (lanes + kPanel - 1) / kPanel;
    runner.apply(scores.view(), slopes.view(), 0, half, visible);
    runner.apply(scores.view(), slopes.view(), half, rows, visible);
    // In blocks, as groups of a mask are.
    for (int row = 0; row < rows; row += 48)
      runner.collect(d_modified.view(), row, std::min(row + 48, rows), 0, panels);
    const kernels::SlopeKind kind = result_.compiled.program.slope;
    for (int row = 0; row < rows; ++row) {
      for (int lane = 0; lane < lanes; ++lane) {
        const std::size_t to = place(item, q + lane, kv + row);
        result_.scores[to] = static_cast<double>(scores.at(row, lane));
        result_.slopes[to] = kind == kernels::SlopeKind::kOne ? 1
                             : kind == kernels::SlopeKind::kUniform
                                 ? runner.uniform_slope()
                                 : static_cast<double>(slopes.at(row, lane));
      }
    }
  }

  const GradientInputs& inputs_;
  const GradientRunOptions& options_;
  GradientResult& result_;
  kernels::GradientSizes sizes_;
  std::vector<kernels::Turn> turns_;
  std::vector<Item> items_;
  std::vector<std::vector<T>> gradients_;
  std::vector<void*> pointers_;
  kernels::GradientTargets targets_;
  std::atomic<std::size_t> next_ = 0;
  std::mutex mutex_;
};

}  // namespace

GradientResult run_gradient(const Formula& score_mod, const GradientInputs& inputs,
                            const GradientRunOptions& options) {
  GradientResult result;
  result.compiled = formula::compile_gradient(
      score_mod,
      {.precision = options.precision, .extents = inputs.extents, .max_rows = options.max_rows});
  const formula::Rectangle& all = inputs.extents;
  const auto size =
      static_cast<std::size_t>(length(all.b) * length(all.h) * length(all.q) * length(all.kv));
  result.scores.resize(size);
  result.slopes.resize(size);
  if (options.precision == Precision::kF64)
    Run<double>(inputs, options, result).run();
  else
    Run<float>(inputs, options, result).run();
  return result;
}

}  // namespace quire::testing
