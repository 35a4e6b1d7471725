// The loops behind peaks.h. Twelve chains cover a latency of 4 cycles at three instructions a
// cycle; they add 0, so nothing grows. Kernels layer.
#pragma once
#include "kernels/fma-inl.h"
#include "kernels/pair_dot-inl.h"
#include "kernels/peaks.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

constexpr size_t kPeakChains = 12;

inline double peak_fma_f32(int64_t steps) noexcept {
  volatile float zero = 0;
  const V a = hn::Set(kF32, zero), b = hn::Set(kF32, zero);
  V acc[kPeakChains];
  QUIRE_UNROLL for (size_t i = 0; i < kPeakChains; ++i) acc[i] = hn::Set(kF32, zero);
  for (int64_t step = 0; step < steps; ++step) {
    QUIRE_UNROLL for (size_t i = 0; i < kPeakChains; ++i) acc[i] = fma(a, acc[i], b);
  }
  V sum = acc[0];
  QUIRE_UNROLL for (size_t i = 1; i < kPeakChains; ++i) sum = hn::Add(sum, acc[i]);
  zero = hn::GetLane(sum);
  return static_cast<double>(steps) * kPeakChains * kLanes * 2;
}

#ifdef QUIRE_BF16_DOT
inline double peak_pairs_bf16(int64_t steps) noexcept {
  volatile float zero = 0;
  const VU a = hn::BitCast(kU32, hn::Set(kF32, zero));
  V acc[kPeakChains];
  QUIRE_UNROLL for (size_t i = 0; i < kPeakChains; ++i) acc[i] = hn::Set(kF32, zero);
  for (int64_t step = 0; step < steps; ++step) {
    QUIRE_UNROLL for (size_t i = 0; i < kPeakChains; ++i) acc[i] =
        pair_dot(a, hn::BitCast(kU32, acc[i]), acc[i]);
  }
  V sum = acc[0];
  QUIRE_UNROLL for (size_t i = 1; i < kPeakChains; ++i) sum = hn::Add(sum, acc[i]);
  zero = hn::GetLane(sum);
  return static_cast<double>(steps) * kPeakChains * kLanes * 4;
}
constexpr auto kPeakPairs = &peak_pairs_bf16;
#else
constexpr double (*kPeakPairs)(int64_t) noexcept = nullptr;
#endif

inline float peak_read(const void* data, size_t bytes) noexcept {
  const auto* from = static_cast<const float*>(data);
  V sum[4];
  QUIRE_UNROLL for (size_t i = 0; i < 4; ++i) sum[i] = hn::Zero(kF32);
  for (size_t at = 0; at < bytes / sizeof(float); at += 4 * kLanes) {
    QUIRE_UNROLL for (size_t i = 0; i < 4; ++i) sum[i] =
        hn::Add(sum[i], hn::LoadU(kF32, from + at + i * kLanes));
  }
  return hn::GetLane(hn::Add(hn::Add(sum[0], sum[1]), hn::Add(sum[2], sum[3])));
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();

// Data only, so outside HWY_BEFORE_NAMESPACE.
namespace quire::kernels::QUIRE_ISA_NS {

constexpr PeakFunctions kPeaks{
    .fma_f32 = &peak_fma_f32, .pairs_bf16 = kPeakPairs, .read = &peak_read};

}  // namespace quire::kernels::QUIRE_ISA_NS
