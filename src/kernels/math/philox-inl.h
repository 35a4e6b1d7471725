// Philox4x32-10 in the lanes of a vector: a counter per lane, one key for all. Integers only, so
// the words are the same on every ISA. Kernels layer.
#pragma once
#include "kernels/simd-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// The 64-bit products of all lanes with a constant, as halves.
struct HalvesOfProduct {
  VU high, low;
};

HWY_INLINE HalvesOfProduct multiply_wide(VU x, uint32_t by) {
#if HWY_TARGET == HWY_SCALAR
  const uint64_t product = uint64_t{hn::GetLane(x)} * by;
  return {hn::Set(kU32, static_cast<uint32_t>(product >> 32)),
          hn::Set(kU32, static_cast<uint32_t>(product))};
#else
  const hn::Repartition<uint64_t, U32> wide;
  const VU factor = hn::Set(kU32, by);
  const auto even = hn::MulEven(x, factor);
  const auto odd = hn::MulEven(hn::BitCast(kU32, hn::ShiftRight<32>(hn::BitCast(wide, x))), factor);
  return {hn::OddEven(hn::BitCast(kU32, odd), hn::BitCast(kU32, hn::ShiftRight<32>(even))),
          hn::OddEven(hn::BitCast(kU32, hn::ShiftLeft<32>(odd)), hn::BitCast(kU32, even))};
#endif
}

// The counter becomes its four words.
HWY_INLINE void philox(VU (&counter)[4], const uint32_t (&key)[2]) {
  uint32_t key0 = key[0], key1 = key[1];
  for (int round = 0; round < 10; ++round) {
    const HalvesOfProduct a = multiply_wide(counter[0], 0xD2511F53u);
    const HalvesOfProduct b = multiply_wide(counter[2], 0xCD9E8D57u);
    counter[0] = hn::Xor(hn::Xor(b.high, counter[1]), hn::Set(kU32, key0));
    counter[1] = b.low;
    counter[2] = hn::Xor(hn::Xor(a.high, counter[3]), hn::Set(kU32, key1));
    counter[3] = a.low;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
