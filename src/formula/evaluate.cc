// evaluate: runs tile programs over a dense tensor of scores or bools, in parallel over batches,
// heads and query tiles. Formula layer.
#include "quire/evaluate.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <vector>

#include "formula/compile/compile.h"
#include "formula/first_fault.h"
#include "formula/simplify/simplify.h"
#include "kernels/dispatch.h"
#include "kernels/tile/tile_runner.h"
#include "quire/error.h"
#include "runtime/ceil_div.h"
#include "runtime/executor_of.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"
#include "runtime/run_parallel.h"

namespace quire {

using namespace formula;
using kernels::TileCoords;
using kernels::TileFault;
using kernels::TileProgram;
using kernels::TileRunner;

namespace {

constexpr int kLanes = kernels::kGroupLanes, kRows = 256;

void check_begin(const char* name, std::int64_t begin) {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;  // beyond any sequence, far below overflow
  if (begin < 0 || begin > kMost) {
    fail(ErrorKind::value, "evaluate", "{} must be in 0..2^40; got {}", name, begin);
  }
}

void check_arguments(const Shape& shape, const EvaluateOptions& options) {
  if (shape.rank() != 4) {
    fail(ErrorKind::value, "evaluate", "the shape must be [batch, heads, q_len, kv_len]; got {}",
         to_string(shape));
  }
  element_count(shape);  // throws for negative sizes and too many elements
  check_begin("q_begin", options.q_begin);
  check_begin("kv_begin", options.kv_begin);
}

// Processes (b, h, 64 queries) one by one; every worker has its own tile and scratch.
class Evaluation {
 public:
  Evaluation(const CompileRequest& request, const Shape& shape, Precision precision,
             const EvaluateOptions& options)
      : shape_(shape),
        options_(options),
        precision_(precision),
        program_(compile(request, compile_options())) {}

  /// Calls tile(runner, coords, tile memory) for every tile; then throws the first fault.
  template <class Tile>
  void run(std::size_t tile_bytes, const Tile& tile);

 private:
  CompileOptions compile_options() const {
    return {.precision = precision_,
            .extents = {{0, shape_[0] - 1},
                        {0, shape_[1] - 1},
                        {options_.q_begin, options_.q_begin + shape_[2] - 1},
                        {options_.kv_begin, options_.kv_begin + shape_[3] - 1}},
            .max_rows = kRows};
  }

  const Shape& shape_;
  const EvaluateOptions& options_;
  Precision precision_;
  TileProgram program_;
};

template <class Tile>
void Evaluation::run(std::size_t tile_bytes, const Tile& tile) {
  if (element_count(shape_) == 0) return;
  const std::shared_ptr<Executor> executor = executor_of(options_.executor);
  const kernels::KernelTable& table = kernels::current_table();
  const kernels::TileFunctions& functions =
      precision_ == Precision::kF64 ? *table.tile_f64 : *table.tile_f32;
  const std::int64_t q_tiles = ceil_div(shape_[2], kLanes);
  const std::size_t items = shape_[0] * shape_[1] * q_tiles;
  const auto whole = [](std::size_t bytes) {
    return static_cast<std::int64_t>((bytes + 63) / 64 * 64);
  };
  const Shape per_worker{static_cast<std::int64_t>(executor->concurrency()),
                         whole(program_.scratch_bytes) + whole(tile_bytes)};
  Tensor memory = Tensor::empty(per_worker, DType::u8);
  std::vector<TileFault> faults(executor->concurrency());
  run_parallel(*executor, items, [&](std::size_t item, std::size_t worker) {
    auto* scratch =
        memory.view().data_as<std::uint8_t>() + static_cast<std::int64_t>(worker) * per_worker[1];
    TileRunner runner(program_, functions, scratch);
    TileCoords coords;
    const std::int64_t i = item;
    const std::int64_t q = i % q_tiles * kLanes;
    coords.start[0] = i / q_tiles / shape_[1];
    coords.start[1] = i / q_tiles % shape_[1];
    coords.start[2] = options_.q_begin + q;
    coords.lanes = static_cast<int>(std::min<std::int64_t>(kLanes, shape_[2] - q));
    for (std::int64_t kv = 0; kv < shape_[3]; kv += kRows) {
      coords.start[3] = options_.kv_begin + kv;
      coords.rows = static_cast<int>(std::min<std::int64_t>(kRows, shape_[3] - kv));
      tile(runner, coords, scratch + whole(program_.scratch_bytes));
    }
    if (runner.fault().before(faults[worker])) faults[worker] = runner.fault();
  });
  throw_first_fault(faults);
}

template <class T>
Tensor evaluate_scores(const Formula& mod, const ConstTensorView& scores, Precision precision,
                       const EvaluateOptions& options) {
  Tensor result = Tensor::empty(scores.shape(), scores.dtype());
  const TensorView to = result.view();
  const auto step = static_cast<std::ptrdiff_t>(kLanes * sizeof(T));
  Evaluation evaluation({.score_mod = &mod}, scores.shape(), precision, options);
  evaluation.run(kRows * kLanes * sizeof(T), [&](TileRunner& runner, const TileCoords& at,
                                                 void* memory) {
    T* tile = static_cast<T*>(memory);  // [rows][64]
    const std::int64_t q = at.start[2] - options.q_begin, kv = at.start[3] - options.kv_begin;
    const T* from = scores.data_as<T>() + at.start[0] * scores.stride(0) +
                    at.start[1] * scores.stride(1) + q * scores.stride(2) + kv * scores.stride(3);
    T* out = to.data_as<T>() + at.start[0] * to.stride(0) + at.start[1] * to.stride(1) +
             q * to.stride(2) + kv;
    for (int row = 0; row < at.rows; ++row)
      for (int lane = 0; lane < at.lanes; ++lane)
        tile[row * kLanes + lane] = from[lane * scores.stride(2) + row * scores.stride(3)];
    T max[kLanes];
    std::fill_n(max, kLanes, -std::numeric_limits<T>::infinity());
    runner.begin(at);
    runner.apply({.data = tile, .row_step = step, .group_step = step, .panel_step = step / 4}, 0,
                 at.rows, max);
    for (int lane = 0; lane < at.lanes; ++lane)
      for (int row = 0; row < at.rows; ++row)
        out[lane * to.stride(2) + row] = tile[row * kLanes + lane];
  });
  return result;
}

}  // namespace

Tensor evaluate(const ScoreMod& mod, ConstTensorView scores, const EvaluateOptions& options) {
  const FloatEnv float_env;
  check_arguments(scores.shape(), options);
  const bool f64 = scores.dtype() == DType::f64;
  if (!f64 && scores.dtype() != DType::f32) {
    fail(ErrorKind::type, "evaluate", "scores must be f32 or f64; got {}",
         dtype_name(scores.dtype()));
  }
  const Precision precision = f64 ? Precision::kF64 : Precision::kF32;
  const Formula simple = simplify(mod.formula(), precision);
  return f64 ? evaluate_scores<double>(simple, scores, precision, options)
             : evaluate_scores<float>(simple, scores, precision, options);
}

Tensor evaluate(const MaskMod& mod, const Shape& shape, const EvaluateOptions& options) {
  const FloatEnv float_env;
  check_arguments(shape, options);
  const Formula simple = simplify(mod.formula(), Precision::kF32);
  Tensor result = Tensor::empty(shape, DType::boolean);
  bool* out = result.view().data_as<bool>();
  Evaluation evaluation({.mask_mod = &simple, .mask_only = true}, shape, Precision::kF32, options);
  evaluation.run(
      kRows * sizeof(std::uint64_t), [&](TileRunner& runner, const TileCoords& at, void* memory) {
        auto* words = static_cast<std::uint64_t*>(memory);
        runner.begin(at);
        runner.mask(words);
        const std::int64_t q = at.start[2] - options.q_begin, kv = at.start[3] - options.kv_begin;
        bool* tile = out + ((at.start[0] * shape[1] + at.start[1]) * shape[2] + q) * shape[3] + kv;
        for (int lane = 0; lane < at.lanes; ++lane)
          for (int row = 0; row < at.rows; ++row)
            tile[lane * shape[3] + row] = words[row] >> lane & 1;
      });
  return result;
}

}  // namespace quire
