// Scores of the decode kernel for more than kFewDecodeRows rows: rows across the lanes, keys
// broadcast from where they lie, so that nothing is transposed but the scores. Chain by chain, a
// few units at a time: the queries of a chain and the keys' numbers of it stay in L1. Same order of
// arithmetic as scores-inl.h. f32 on vectors. Kernels layer.
#pragma once
#include <cstring>

#include "kernels/decode/columns-inl.h"
#include "kernels/float16-inl.h"
#include "kernels/product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

#if HWY_TARGET != HWY_SCALAR

// Units whose sums are kept while chains are added up.
constexpr int kManyUnits = 4;
// The most rows, in whole panels.
constexpr int kManyLanes = query_lanes(kManyDecodeRows);

// A chain of a score, for the keys of one unit.
template <class E>
struct LaneChain {
  const E* queries = nullptr;  // [steps][lanes]
  int lanes = 0, steps = 0;
  bool is_first = false;
  float* sums = nullptr;  // [16][lanes]
};

// The addresses of R keys. Where they lie a step apart, every fourth is kept: base + 0, 1, 2 and 3
// steps. g++ would keep an offset for each key, and move them in and out of vector registers.
template <size_t R, class Rows>
struct LaneKeys {
  Rows rows;
  explicit HWY_INLINE LaneKeys(const Rows& from) : rows(from) {}
  HWY_INLINE const char* key(size_t r) const { return rows.row(static_cast<int>(r)); }
  HWY_INLINE void advance(int bytes) { rows.advance(bytes); }
};
template <size_t R>
struct LaneKeys<R, StepRows> {
  static constexpr size_t kBases = (R + 3) / 4;
  const char* base[kBases];
  ptrdiff_t step;
  explicit HWY_INLINE LaneKeys(const StepRows& from) : step(from.step) {
    QUIRE_UNROLL for (size_t i = 0; i < kBases; ++i) {
      base[i] = from.row(static_cast<int>(4 * i));
      asm("" : "+r"(base[i]));
    }
  }
  HWY_INLINE const char* key(size_t r) const {
    return base[r / 4] + static_cast<ptrdiff_t>(r % 4) * step;
  }
  HWY_INLINE void advance(int bytes) {
    QUIRE_UNROLL for (size_t i = 0; i < kBases; ++i) base[i] += bytes;
  }
};

// Keys [first, first + R) by C vectors of rows, from `vector` on. One line is prefetched for every
// step, as many as a unit has.
template <class Product, size_t R, size_t C, class Rows, class Cursor>
HWY_NOINLINE void lane_block(const LaneChain<typename Product::Element>& chain, Rows rows,
                             size_t first, size_t vector, Cursor& ahead) {
  using E = typename Product::Element;
  constexpr ptrdiff_t kSteps = 4;
  constexpr size_t kN = kLanes;
  constexpr bool kAsksByList = !std::is_same_v<Cursor, StepCursor>;
  const ptrdiff_t lanes = chain.lanes;
  const E* queries = chain.queries + vector * kN;
  LaneKeys<R, Rows> keys(rows.from(static_cast<int>(first)));
  V acc[R][C];
  clear_block<float>(acc);
  Cursor lines = ahead;
  int steps = chain.steps;
  for (; steps >= kSteps; steps -= kSteps, queries += kSteps * lanes, keys.advance(4 * kSteps)) {
    const char* line = nullptr;
    if constexpr (kAsksByList)
      lines.template take<kSteps>();
    else
      line = lines.take(kSteps, keys.key(0));
    typename Product::Operand vectors[kSteps][C];
    QUIRE_UNROLL for (ptrdiff_t u = 0; u < kSteps; ++u) {
      if constexpr (!kAsksByList) {
        __builtin_prefetch(line, 0, 2);
        line += lines.inner;
      }
      QUIRE_UNROLL for (size_t c = 0; c < C; ++c) vectors[u][c] =
          Product::load(queries + u * lanes + c * kN);
    }
    QUIRE_UNROLL for (size_t r = 0; r < R; ++r) {
      const E* const key = reinterpret_cast<const E*>(keys.key(r));
      QUIRE_UNROLL for (ptrdiff_t u = 0; u < kSteps; ++u) {
        const auto x = Product::broadcast(key + u);
        QUIRE_UNROLL for (size_t c = 0; c < C; ++c) acc[r][c] =
            Product::multiply_add(x, vectors[u][c], acc[r][c]);
      }
    }
  }
  for (; steps > 0; --steps, queries += lanes, keys.advance(4)) {
    QUIRE_UNROLL for (size_t r = 0; r < R; ++r) {
      const auto x = Product::broadcast(reinterpret_cast<const E*>(keys.key(r)));
      QUIRE_UNROLL for (size_t c = 0; c < C; ++c) acc[r][c] =
          Product::multiply_add(x, Product::load(queries + c * kN), acc[r][c]);
    }
  }
  ahead = lines;
  float* sums = chain.sums + static_cast<ptrdiff_t>(first) * lanes + vector * kN;
  QUIRE_UNROLL for (size_t r = 0; r < R; ++r, sums += lanes) {
    QUIRE_UNROLL for (size_t c = 0; c < C; ++c) {
      const V sum = chain.is_first ? acc[r][c] : hn::Add(hn::LoadU(kF32, sums + c * kN), acc[r][c]);
      hn::StoreU(sum, kF32, sums + c * kN);
    }
  }
}

// All keys of a unit by C vectors.
template <class Product, size_t C, class Rows, class Cursor>
HWY_INLINE void lane_keys(const LaneChain<typename Product::Element>& chain, const Rows& rows,
                          size_t vector, Cursor& ahead) {
  static_assert(kUnitKeys == 16);
  if constexpr (block_rows(C) >= 16) {
    lane_block<Product, 16, C>(chain, rows, 0, vector, ahead);
  } else if constexpr (block_rows(C) >= 8) {
    lane_block<Product, 8, C>(chain, rows, 0, vector, ahead);
    lane_block<Product, 8, C>(chain, rows, 8, vector, ahead);
  } else {
    lane_block<Product, 6, C>(chain, rows, 0, vector, ahead);
    lane_block<Product, 5, C>(chain, rows, 6, vector, ahead);
    lane_block<Product, 5, C>(chain, rows, 11, vector, ahead);
  }
}

template <class Product, class Rows, class Cursor>
HWY_INLINE void lane_unit(const LaneChain<typename Product::Element>& chain, const Rows& rows,
                          Cursor& ahead) {
  constexpr size_t kOfPanel = kPanel / kLanes, kOne = HWY_MIN(kOfPanel, kBlockVectors);
  constexpr size_t kTwo = HWY_MIN(2 * kOfPanel, kBlockVectors);
  const size_t vectors = chain.lanes / kLanes;
  size_t vector = 0;
  for (; vector + kTwo <= vectors; vector += kTwo)
    lane_keys<Product, kTwo>(chain, rows, vector, ahead);
  for (; vector < vectors; vector += kOne) lane_keys<Product, kOne>(chain, rows, vector, ahead);
}

// How the numbers of keys are multiplied: where they lie, or, to be widened or completed with a
// zero, in a copy of a chain's.
struct LanesF32 {
  using Product = FmaProduct<float>;
  static constexpr int kNumbers = 1;  // of a step
  static constexpr int kBytes = 4;    // of a number
  static bool copies(int /*numbers*/) { return false; }
  static void copy(const char* /*from*/, int /*numbers*/, char* /*to*/) {}
};

// Numbers of 16 bits.
template <class E>
struct LanesWidened {
  using Product = FmaProduct<float>;
  static constexpr int kNumbers = 1;
  static constexpr int kBytes = 2;
  static bool copies(int /*numbers*/) { return true; }
  static HWY_INLINE void copy(const char* from, int numbers, char* to) {
    constexpr int kN = static_cast<int>(kLanes);
    auto* const out = reinterpret_cast<float*>(to);
    int i = 0;
    for (; i + kN <= numbers; i += kN)
      hn::StoreU(load_widened(kF32, reinterpret_cast<const E*>(from) + i), kF32, out + i);
    for (; i < numbers; ++i) {
      E number;
      std::memcpy(&number, from + ptrdiff_t{2} * i, 2);
      out[i] = widened<float>(number);
    }
  }
};

#if defined(QUIRE_BF16_DOT)
struct LanesPairs {
  using Product = PairProduct;
  static constexpr int kNumbers = 2;
  static constexpr int kBytes = 2;
  static bool copies(int numbers) { return numbers % 2 != 0; }
  static HWY_INLINE void copy(const char* from, int numbers, char* to) {
    std::memcpy(to, from, numbers * size_t{2});
    std::memset(to + ptrdiff_t{2} * numbers, 0, numbers % 2 * size_t{2});
  }
};
#endif

// Writes the sums of a unit to the rows they belong to.
HWY_INLINE void turn_sums(const UnitScoresArgs<float>& args, const float* sums, int lanes,
                          const DecodeUnit& unit) {
  const V scale = hn::Set(kF32, args.scale);
  for (int first = 0; first < kUnitKeys; first += static_cast<int>(kLanes)) {
    for (int row = 0; row < args.rows; row += kChunk) {
      const StepRows from(reinterpret_cast<const char*>(sums + first * lanes + row),
                          ptrdiff_t{4} * lanes);
      VU x[kChunk];
      WholeChunk whole;
      load_columns(whole, from, x);
      float* to = args.scores + row * kDecodeScoreStep + unit.place * kUnitKeys + first;
      for (int j = 0; j < kChunk && row + j < args.rows; ++j, to += kDecodeScoreStep) {
        const V score = hn::BitCast(kF32, x[j]);
        hn::StoreU(args.natural ? hn::Mul(score, scale) : score, kF32, to);
      }
    }
  }
}

template <class Numbers, class Rows>
HWY_INLINE void many_unit_chain(const UnitScoresArgs<float>& args,
                                const LaneChain<typename Numbers::Product::Element>& chain,
                                const DecodeUnit& unit, int done, int numbers,
                                typename Rows::FarCursor& ahead) {
  using Product = typename Numbers::Product;
  Rows rows(unit, args.step);
  rows.advance(done * Numbers::kBytes);
  if (HWY_LIKELY(!Numbers::copies(numbers))) return lane_unit<Product>(chain, rows, ahead);
  constexpr ptrdiff_t kStep = 256 + 64;  // 64 numbers widened, or 128 of 16 bits, in other L1 sets
  HWY_ALIGN char copy[kUnitKeys * kStep];
  for (int key = 0; key < kUnitKeys; ++key)
    Numbers::copy(rows.row(key), numbers, copy + key * kStep);
  lane_unit<Product>(chain, StepRows(copy, kStep), ahead);
}

// Up to kManyUnits units that are all found in the same way.
template <class Numbers, class Rows>
void many_units(const UnitScoresArgs<float>& args, int first, int count) {
  using E = typename Numbers::Product::Element;
  HWY_ALIGN float sums[kManyUnits * kUnitKeys * kManyLanes];
  const int lanes = query_lanes(args.rows);
  typename Rows::FarCursor ahead[kManyUnits];
  for (int u = 0; u < count; ++u) {
    const UnitAhead& far = args.ahead[first + u + kUnitsAhead];
    ahead[u].start(far, 0);
    prefetch_other<2>(far, Rows::kIsList);
  }
  const int most = chain_dims(args.dims, Numbers::kNumbers == 2);
  LaneChain<E> chain{.queries = static_cast<const E*>(args.queries), .lanes = lanes};
  for (int done = 0; done < args.dims; done += most) {
    const int numbers = HWY_MIN(most, args.dims - done);
    chain.steps = (numbers + Numbers::kNumbers - 1) / Numbers::kNumbers;
    chain.is_first = done == 0;
    for (int u = 0; u < count; ++u) {
      chain.sums = sums + ptrdiff_t{u} * kUnitKeys * lanes;
      many_unit_chain<Numbers, Rows>(args, chain, args.units[first + u], done, numbers, ahead[u]);
    }
    chain.queries += ptrdiff_t{chain.steps} * lanes;
  }
  for (int u = 0; u < count; ++u)
    turn_sums(args, sums + ptrdiff_t{u} * kUnitKeys * lanes, lanes, args.units[first + u]);
}

template <class Numbers>
void many_scores_of(const UnitScoresArgs<float>& args) {
  for (int first = 0, count; first < args.unit_count; first += count) {
    const bool is_list = args.units[first].rows != nullptr;
    for (count = 1; count < kManyUnits && first + count < args.unit_count; ++count)
      if ((args.units[first + count].rows != nullptr) != is_list) break;
    if (is_list)
      many_units<Numbers, ListRows>(args, first, count);
    else
      many_units<Numbers, StepRows>(args, first, count);
  }
}

inline void many_scores(const UnitScoresArgs<float>& args) noexcept {
  switch (args.kind) {
    case DecodeKind::kOwn:
      return many_scores_of<LanesF32>(args);
    case DecodeKind::kBf16:
      return many_scores_of<LanesWidened<Bf16Bits>>(args);
    case DecodeKind::kF16:
      return many_scores_of<LanesWidened<F16Bits>>(args);
#if defined(QUIRE_BF16_DOT)
    case DecodeKind::kPairs:
      return many_scores_of<LanesPairs>(args);
#endif
    default:  // most_decode_rows (decode.h)
      return;
  }
}

#endif

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
