// Tiles over a region. Tests only.
#include "tests/support/tile_harness.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>

#include "kernels/dispatch.h"

namespace quire::testing {

using formula::CompileOptions;
using formula::CompileRequest;
using formula::IndexRange;
using formula::Rectangle;
using kernels::ScoreTile;
using kernels::TileCoords;
using kernels::TileProgram;
using kernels::TileRunner;
using kernels::Vary;

namespace {

struct AlignedBytes {
  explicit AlignedBytes(std::size_t bytes)
      : data(static_cast<char*>(std::aligned_alloc(64, (bytes + 127) / 64 * 64)), &std::free) {
    std::memset(data.get(), 0xff, bytes);  // NaN as a float, -1 as an integer
  }
  std::unique_ptr<char, decltype(&std::free)> data;
};

std::int64_t length(const IndexRange& range) { return range.last - range.first + 1; }

// One row or lane of a tile as a place in the region.
struct Place {
  std::int64_t h, q, kv;
};

class Region {
 public:
  Region(const Rectangle& region, const ScoreAt& score, const TileRunOptions& options,
         TileProgram program)
      : region_(region), score_(score), options_(options), scratch_(program.scratch_bytes) {
    result_.program = std::move(program);
    const auto size =
        static_cast<std::size_t>(length(region.h) * length(region.q) * length(region.kv));
    result_.scores.assign(size, 0);
    result_.visible.assign(size, false);
    result_.lane_max.assign(static_cast<std::size_t>(length(region.h) * length(region.q)), -kInf);
  }

  TileResult run();

 private:
  static constexpr double kInf = std::numeric_limits<double>::infinity();

  void tiles_of_head(std::int64_t h, TileRunner& runner);
  void tiles_of_pairs(TileRunner& runner);
  void run_tile(TileRunner& runner, const TileCoords& coords,
                const std::function<Place(int row, int lane)>& place);
  template <class T>
  void run_score_tile(TileRunner& runner, const TileCoords& coords,
                      const std::function<Place(int, int)>& place);
  std::size_t index(const Place& at) const {
    return static_cast<std::size_t>(
        ((at.h - region_.h.first) * length(region_.q) + at.q - region_.q.first) *
            length(region_.kv) +
        at.kv - region_.kv.first);
  }
  std::size_t row_index(const Place& at) const {
    return static_cast<std::size_t>((at.h - region_.h.first) * length(region_.q) + at.q -
                                    region_.q.first);
  }

  const Rectangle& region_;
  const ScoreAt& score_;
  const TileRunOptions& options_;
  AlignedBytes scratch_;
  TileResult result_;
};

template <class T>
void Region::run_score_tile(TileRunner& runner, const TileCoords& coords,
                            const std::function<Place(int, int)>& place) {
  const int groups = options_.groups, rows = options_.max_rows;
  const auto floats = static_cast<std::size_t>(rows * groups * 64);
  AlignedBytes memory(floats * sizeof(T));
  T* const tile = reinterpret_cast<T*>(memory.data.get());
  const auto bytes = static_cast<std::ptrdiff_t>(sizeof(T));
  ScoreTile scores{.data = tile,
                   .row_step = groups * 64 * bytes,
                   .group_step = 64 * bytes,
                   .panel_step = 16 * bytes};
  if (options_.panels_apart)
    scores = {.data = tile,
              .row_step = 16 * bytes,
              .group_step = rows * 64 * bytes,
              .panel_step = rows * 16 * bytes};
  const auto at = [&](int row, int lane) -> T& {
    char* p = static_cast<char*>(scores.data) + row * scores.row_step +
              lane / 64 * scores.group_step + lane % 64 / 16 * scores.panel_step;
    return reinterpret_cast<T*>(p)[lane % 16];
  };
  for (int r = 0; r < coords.rows; ++r) {
    for (int l = 0; l < coords.lanes; ++l) {
      const Place p = place(r, l);
      at(r, l) = static_cast<T>(score_(p.h, p.q, p.kv));
    }
  }
  const bool per_row = options_.axes != TileAxes::kPrefill;
  std::vector<T> max(static_cast<std::size_t>(std::max(rows, groups) * 64),
                     -std::numeric_limits<T>::infinity());
  runner.begin(coords);
  // In two goes, as a kernel does that interleaves with the products.
  const int half = coords.rows / 2;
  runner.apply(scores, 0, half, max.data());
  runner.apply(scores, half, coords.rows, max.data() + (per_row ? half * 64 : 0));
  for (int r = 0; r < coords.rows; ++r) {
    for (int l = 0; l < coords.lanes; ++l) {
      const Place p = place(r, l);
      result_.scores[index(p)] = static_cast<double>(at(r, l));
      double& best = result_.lane_max[row_index(p)];
      if (!per_row) best = std::max<double>(best, max[static_cast<std::size_t>(l)]);
    }
    if (!per_row) continue;
    double& best = result_.lane_max[row_index(place(r, 0))];
    for (int l = 0; l < 64; ++l)
      best = std::max<double>(best, max[static_cast<std::size_t>(r * 64 + l)]);
  }
}

void Region::run_tile(TileRunner& runner, const TileCoords& coords,
                      const std::function<Place(int, int)>& place) {
  if (result_.program.has_score) {
    if (options_.precision == Precision::kF64)
      run_score_tile<double>(runner, coords, place);
    else
      run_score_tile<float>(runner, coords, place);
    return;
  }
  const int groups = (coords.lanes + 63) / 64;
  std::vector<std::uint64_t> words(static_cast<std::size_t>(coords.rows * groups));
  runner.begin(coords);
  runner.mask(words.data());
  for (int r = 0; r < coords.rows; ++r)
    for (int l = 0; l < coords.lanes; ++l)
      result_.visible[index(place(r, l))] =
          words[static_cast<std::size_t>(r * groups + l / 64)] >> (l % 64) & 1;
}

void Region::tiles_of_head(std::int64_t h, TileRunner& runner) {
  const bool prefill = options_.axes == TileAxes::kPrefill;
  const IndexRange lane_range = prefill ? region_.q : region_.kv,
                   row_range = prefill ? region_.kv : region_.q;
  for (std::int64_t lane = lane_range.first; lane <= lane_range.last;
       lane += options_.groups * 64) {
    for (std::int64_t row = row_range.first; row <= row_range.last; row += options_.max_rows) {
      TileCoords coords;
      coords.start[0] = region_.b.first;
      coords.start[1] = h;
      coords.start[2] = prefill ? lane : row;
      coords.start[3] = prefill ? row : lane;
      coords.lanes = static_cast<int>(
          std::min<std::int64_t>(options_.groups * 64, lane_range.last - lane + 1));
      coords.rows =
          static_cast<int>(std::min<std::int64_t>(options_.max_rows, row_range.last - row + 1));
      run_tile(runner, coords, [&](int r, int l) {
        return prefill ? Place{h, lane + l, row + r} : Place{h, row + r, lane + l};
      });
    }
  }
}

// Rows are (h, q) pairs of all heads, a few at a time.
void Region::tiles_of_pairs(TileRunner& runner) {
  std::vector<std::int64_t> heads, queries;
  for (std::int64_t q = region_.q.first; q <= region_.q.last; ++q) {
    for (std::int64_t h = region_.h.first; h <= region_.h.last; ++h) {
      heads.push_back(h);
      queries.push_back(q);
    }
  }
  for (std::size_t first = 0; first < heads.size();
       first += static_cast<std::size_t>(options_.max_rows)) {
    for (std::int64_t lane = region_.kv.first; lane <= region_.kv.last;
         lane += options_.groups * 64) {
      TileCoords coords;
      coords.start[0] = region_.b.first;
      coords.list[1] = heads.data() + first;
      coords.list[2] = queries.data() + first;
      coords.start[3] = lane;
      coords.lanes = static_cast<int>(
          std::min<std::int64_t>(options_.groups * 64, region_.kv.last - lane + 1));
      coords.rows = static_cast<int>(
          std::min<std::size_t>(static_cast<std::size_t>(options_.max_rows), heads.size() - first));
      run_tile(runner, coords, [&](int r, int l) {
        const std::size_t i = first + static_cast<std::size_t>(r);
        return Place{heads[i], queries[i], lane + l};
      });
    }
  }
}

TileResult Region::run() {
  const kernels::KernelTable& table = kernels::table_for(options_.isa);
  TileRunner runner(result_.program,
                    options_.precision == Precision::kF64 ? *table.tile_f64 : *table.tile_f32,
                    scratch_.data.get());
  if (options_.axes == TileAxes::kDecodePairs) {
    tiles_of_pairs(runner);
  } else {
    for (std::int64_t h = region_.h.first; h <= region_.h.last; ++h) tiles_of_head(h, runner);
  }
  result_.fault = runner.fault();
  return std::move(result_);
}

}  // namespace

TileResult run_tiles(const CompileRequest& request, const Rectangle& extents,
                     const Rectangle& region, const ScoreAt& score, const TileRunOptions& options) {
  CompileOptions compile_options{.precision = options.precision,
                                 .extents = extents,
                                 .max_rows = options.max_rows,
                                 .groups = options.groups,
                                 .max_per_row = options.axes != TileAxes::kPrefill,
                                 .node_by_node = options.node_by_node};
  if (options.axes != TileAxes::kPrefill) {
    const bool pairs = options.axes == TileAxes::kDecodePairs;
    compile_options.vary[1] = pairs ? Vary::kRowList : Vary::kConstant;
    compile_options.vary[2] = pairs ? Vary::kRowList : Vary::kRowRange;
    compile_options.vary[3] = Vary::kLaneRange;
  }
  return Region(region, score, options, formula::compile(request, compile_options)).run();
}

bool same_bits(double a, double b) {
  return std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

}  // namespace quire::testing
