// How decode reads rows of codes as integers of 16 bits, a vector of consecutive channels at a
// time: bytes as they are, integers that were made of codes before, or codes that become integers
// (attention_order.h) in registers, where they are multiplied. Kernels layer.
#pragma once
#include "kernels/coding/integer_rows-inl.h"
#include "kernels/decode/functions.h"

#if HWY_TARGET != HWY_SCALAR
HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

// The words of a unit's rows. kIsInPlace: a channel's byte has the channel's own offset in the row.
// kHasParts: less than a vector of channels can be asked for.
struct ByteWords {
  static constexpr bool kIsInPlace = true, kHasParts = true;

  HWY_INLINE ByteWords(const IntegerRules&, const DecodeUnit&) {}
  HWY_INLINE hn::Vec<Words> words(const char* row, int /*key*/, int channel) const {
    const hn::Rebind<int8_t, Words> bytes;
    return hn::PromoteTo(kWords, hn::LoadU(bytes, reinterpret_cast<const int8_t*>(row + channel)));
  }
  // The first `count` of them, then zeros.
  HWY_INLINE hn::Vec<Words> part(const char* row, int key, int channel, int count) const {
    HWY_ALIGN char copy[kWordLanes] = {};
    std::memcpy(copy, row + channel, static_cast<size_t>(count));
    return words(copy, key, 0);
  }
};

struct MadeWords {
  static constexpr bool kIsInPlace = false, kHasParts = true;

  HWY_INLINE MadeWords(const IntegerRules&, const DecodeUnit&) {}
  HWY_INLINE hn::Vec<Words> words(const char* row, int /*key*/, int channel) const {
    return hn::LoadU(kWords, reinterpret_cast<const int16_t*>(row) + channel);
  }
  HWY_INLINE hn::Vec<Words> part(const char* row, int key, int channel, int count) const {
    HWY_ALIGN char copy[2 * kWordLanes] = {};
    std::memcpy(copy, row + 2 * channel, static_cast<size_t>(count) * 2);
    return words(copy, key, 0);
  }
};

enum class CodeLayout { kChannels, kRow, kGroups, kBlocks };

// Codes of kType, with an offset for each multiplier if kShifts.
template <CodeType kType, bool kShifts, CodeLayout kLayout>
class RuledWords {
 public:
  static constexpr bool kIsInPlace = kType != CodeType::kU4 && kLayout != CodeLayout::kBlocks;
  static constexpr bool kHasParts = false;

  HWY_INLINE RuledWords(const IntegerRules& by, const DecodeUnit& unit)
      : multipliers_(by.multipliers +
                     (kLayout == CodeLayout::kChannels ? 0 : unit.place * kUnitKeys)),
        offsets_(kShifts ? by.offsets + unit.place * kUnitKeys : nullptr),
        step_(by.step) {}

  HWY_INLINE hn::Vec<Words> words(const char* row, int key, int channel) const {
    if constexpr (kLayout == CodeLayout::kChannels) {
      const auto* const factors = reinterpret_cast<const int16_t*>(multipliers_) + channel;
      return hn::MulFixedPoint15(high_codes<kType>(codes_of(row), channel),
                                 hn::LoadU(kWords, factors));
    } else {
      constexpr bool kIsRow = kLayout == CodeLayout::kRow;
      const ptrdiff_t at = kIsRow ? key : channel / kCodeGroup * step_ + key;
      const auto factor = hn::BitCast(kWords, hn::Set(kI32, multipliers_[at]));
      const auto shift = hn::BitCast(kWords, hn::Set(kI32, kShifts ? offsets_[at] : 0));
      if constexpr (kIsRow) {
        return shifted(hn::MulFixedPoint15(high_codes<kType>(codes_of(row), channel), factor),
                       shift);
      } else {
        return of_group(codes_of(row + channel / kCodeGroup * kGroupBytes), channel % kCodeGroup,
                        factor, shift);
      }
    }
  }

 private:
  static constexpr int kScaleBytes = kLayout == CodeLayout::kBlocks ? 2 : 0;
  static constexpr int kGroupBytes =
      (kType == CodeType::kU4 ? kCodeGroup / 2 : kCodeGroup) + kScaleBytes;

  static HWY_INLINE const uint8_t* codes_of(const char* row) {
    return reinterpret_cast<const uint8_t*>(row) + kScaleBytes;
  }
  static HWY_INLINE hn::Vec<Words> shifted(hn::Vec<Words> x, hn::Vec<Words> shift) {
    if constexpr (kShifts) return hn::Add(x, shift);
    return x;
  }
  static HWY_INLINE hn::Vec<Words> of_group(const uint8_t* codes, int channel,
                                            hn::Vec<Words> factor, hn::Vec<Words> shift) {
#if HWY_TARGET == HWY_AVX3
    if constexpr (kType == CodeType::kU4) {
      // What each of the 16 codes becomes, twice: the index of a word has 5 bits, and of the fifth,
      // which belongs to the other half of the byte, nothing is known.
      HWY_ALIGN static constexpr int16_t kCodes[32] = {
          -2048, -1792, -1536, -1280, -1024, -768,  -512,  -256,  0,     256,   512,
          768,   1024,  1280,  1536,  1792,  -2048, -1792, -1536, -1280, -1024, -768,
          -512,  -256,  0,     256,   512,   768,   1024,  1280,  1536,  1792};
      HWY_ALIGN static constexpr uint16_t kDropped[32] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
                                                          0, 0, 0, 0, 0, 4, 4, 4, 4, 4, 4,
                                                          4, 4, 4, 4, 4, 4, 4, 4, 4, 4};
      static_assert(kRowShift == 4);
      const auto becomes = shifted(hn::MulFixedPoint15(hn::Load(kWords, kCodes), factor), shift);
      const hn::RebindToUnsigned<Words> words;
      const hn::Rebind<uint8_t, Words> bytes;
      const auto both = hn::PromoteTo(words, hn::LoadDup128(bytes, codes));
      const __m512i index = _mm512_srlv_epi16(both.raw, hn::Load(words, kDropped).raw);
      return hn::Vec<Words>{_mm512_permutexvar_epi16(index, becomes.raw)};
    }
#endif
    return shifted(hn::MulFixedPoint15(high_codes<kType>(codes, channel), factor), shift);
  }

  const int32_t *multipliers_, *offsets_;
  ptrdiff_t step_;
};

// Calls `function` with the words of codes that become integers.
template <class Function>
HWY_INLINE void with_ruled_words(const RowCoding& coding, const Function& function) {
  using Codes = CodeType;
  using Layout = CodeLayout;
  if (coding.codes == Codes::kU8)
    return function.template operator()<RuledWords<Codes::kU8, true, Layout::kRow>>();
  if (coding.codes == Codes::kU4) {
    return coding.in_blocks
               ? function.template operator()<RuledWords<Codes::kU4, false, Layout::kBlocks>>()
               : function.template operator()<RuledWords<Codes::kU4, true, Layout::kGroups>>();
  }
  return coding.in_blocks
             ? function.template operator()<RuledWords<Codes::kI8, false, Layout::kBlocks>>()
             : function.template operator()<RuledWords<Codes::kI8, false, Layout::kChannels>>();
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
#endif
