// bf16 products of the decode kernel on vectors, with the same bits as tile registers: separate
// chains of even and of odd numbers, 32 dims or 32 keys per step (attention_order.h). Subnormals
// are 0 in these products, as they are in tiles; scales and sums of O are applied afterwards, where
// subnormals count. Kernels layer.
#pragma once
#include <cstring>

#include "kernels/amx/tiles-inl.h"
#include "kernels/decode/scores-inl.h"
#include "kernels/decode/values-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// Subnormals are 0 during its lifetime. The compiler moves nothing across its beginning and end.
class WithoutSubnormals {
 public:
  HWY_INLINE WithoutSubnormals() : before_(_mm_getcsr()) {
    constexpr unsigned kDaz = 0x0040, kFtz = 0x8000;
    _mm_setcsr(before_ | kDaz | kFtz);
    asm volatile("" ::: "memory");
  }
  HWY_INLINE ~WithoutSubnormals() {
    asm volatile("" ::: "memory");
    _mm_setcsr(before_);
    asm volatile("" ::: "memory");
  }
  WithoutSubnormals(const WithoutSubnormals&) = delete;
  WithoutSubnormals& operator=(const WithoutSubnormals&) = delete;

 private:
  unsigned before_;
};

// As KeysBf16, with separate sums for odd dims.
struct KeysTiles {
  using Query = float;
  using Scales = NoScales;
  static constexpr int kNumbers = 2;
  static constexpr int kBytes = 2;
  template <int kCount>
  static HWY_INLINE void step(VU x, const float* q, V (&acc)[kCount], const NoScales&) {
    constexpr int kRows = kCount / 2;
    const V even = hn::BitCast(kF32, hn::ShiftLeft<16>(x));
    const V odd = hn::BitCast(kF32, hn::And(x, hn::Set(kU32, 0xffff0000u)));
    QUIRE_UNROLL for (int g = 0; g < kRows; ++g) {
      acc[g] = fma(even, hn::Set(kF32, q[g]), acc[g]);
      acc[kRows + g] = fma(odd, hn::Set(kF32, q[kRows + g]), acc[kRows + g]);
    }
  }
};

template <>
struct ScoreChain<KeysTiles> {
  static constexpr int kSums = 2;
  static HWY_INLINE int dims(int /*all*/) { return 2 * kStepPairs; }
  template <int kCount>
  static HWY_INLINE V sum(const V (&acc)[kCount], int row, V before, bool is_first, int dims) {
    const V zero = hn::Zero(kF32);
    V even = acc[row], odd = acc[kCount / 2 + row];
    // A tile also adds the products of its zero padding: a sum of -0 becomes +0.
    if (HWY_UNLIKELY(dims < 2 * kStepPairs)) {
      even = hn::Add(even, zero);
      odd = hn::Add(odd, zero);
    }
    return hn::Add(is_first ? zero : before, hn::Add(even, odd));
  }
};

inline void tile_unit_scores(const UnitScoresArgs<float>& args) {
  UnitScoresArgs<float> raw = args;
  raw.natural = false;
  {
    const WithoutSubnormals scope;
    unit_scores<KeysTiles>(raw);
  }
  if (!args.natural) return;
  const V scale = hn::Set(kF32, args.scale);
  for (int row = 0; row < args.rows; ++row) {
    for (int u = 0; u < args.unit_count; ++u) {
      float* const at = args.scores + row * kDecodeScoreStep + args.units[u].place * kUnitKeys;
      hn::StoreU(hn::Mul(hn::LoadU(kF32, at), scale), kF32, at);
    }
  }
}

// The even or the odd key of each two; columns in the order of Bf16Values.
template <int kKey>
struct TileValues : Bf16Values {
  static constexpr int kKeys = 2;
  static HWY_INLINE void load(const char* at, ptrdiff_t step, const DecodeUnit& unit, int key,
                              V (&x)[2]) {
    Bf16Values::load(at + kKey * step, step, unit, key, x);
  }
  static HWY_INLINE void step(const V (&x)[2], const float* weight, V (&acc)[2]) {
    Bf16Values::step(x, weight + kKey, acc);
  }
};

// The sums of a chain of values, in the memory of UnitValuesArgs::chain.
class TileChain {
 public:
  explicit HWY_INLINE TileChain(const UnitValuesArgs<float>& args)
      : plane_(static_cast<ptrdiff_t>(padded_rows(args.rows)) * args.out_step),
        sums_(args.chain),
        step_(reinterpret_cast<int32_t*>(args.chain + 3 * plane_)) {}

  HWY_INLINE float* of_keys(int parity) const { return sums_ + (1 + parity) * plane_; }
  // Returns whether the unit begins a step.
  HWY_INLINE bool begin(const DecodeUnit& unit) {
    const int32_t step = unit.place / 2;
    if (unit.begins_chain) {
      for (ptrdiff_t i = 0; i < plane_; i += kN) hn::StoreU(hn::Zero(kF32), kF32, sums_ + i);
    } else if (*step_ == step) {
      return false;
    } else {
      end_step();
    }
    *step_ = step;
    return true;
  }
  HWY_INLINE void end_step() {
    for (ptrdiff_t i = 0; i < plane_; i += kN) {
      const V even = hn::LoadU(kF32, sums_ + plane_ + i);
      const V odd = hn::LoadU(kF32, sums_ + 2 * plane_ + i);
      hn::StoreU(hn::Add(hn::LoadU(kF32, sums_ + i), hn::Add(even, odd)), kF32, sums_ + i);
    }
  }
  HWY_INLINE void add_to(float* out) const {
    for (ptrdiff_t i = 0; i < plane_; i += kN)
      hn::StoreU(hn::Add(hn::LoadU(kF32, out + i), hn::LoadU(kF32, sums_ + i)), kF32, out + i);
  }

 private:
  static constexpr auto kN = static_cast<ptrdiff_t>(kLanes);
  ptrdiff_t plane_;
  float* sums_;
  int32_t* step_;  // number of the current step
};

inline void tile_unit_values(const UnitValuesArgs<float>& args) {
  constexpr int kMostRows = 12;
  constexpr UnitAhead kNothing[kUnitsAhead + 1] = {};
  HWY_ALIGN float weights[kMostRows * kDecodeScoreStep];  // those of the current unit
  TileChain chain(args);
  bool ends = false;
  {
    const WithoutSubnormals scope;
    UnitValuesArgs<float> half = args;
    half.unit_count = 1;
    for (int u = 0; u < args.unit_count; ++u) {
      DecodeUnit unit = args.units[u];
      ends |= unit.ends_chain;
      unit.begins_chain = chain.begin(unit);
      unit.ends_chain = false;
      half.units = &unit;
      const ptrdiff_t at = unit.place * kUnitKeys;
      for (size_t row = 0; row < padded_rows(args.rows); ++row)
        hn::StoreU(load_widened(kF32, reinterpret_cast<const Bf16Bits*>(
                                          args.pair_weights + row * kDecodeScoreStep + at)),
                   kF32, weights + row * kDecodeScoreStep + at);
      half.ahead = args.ahead + u;
      half.chain = chain.of_keys(0);
      unit_values<TileValues<0>>(half, weights);
      half.ahead = kNothing;
      half.chain = chain.of_keys(1);
      unit_values<TileValues<1>>(half, weights);
    }
    if (ends) chain.end_step();
  }
  if (ends) chain.add_to(args.out);
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
