// Rows of codes as integers of 16 bits, all of a row under one scale, as attention_order.h defines
// them: each group of channels has a multiplier and, if its codes are shifted, an offset. Kernels
// layer.
#pragma once
#include <type_traits>

#include "kernels/coding/decode-inl.h"
#include "kernels/integer_dot-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

constexpr int code_bits(CodeType codes) { return codes == CodeType::kU4 ? 4 : 8; }

// What is subtracted from a code so that zero lies in the middle.
constexpr int code_middle(CodeType codes) {
  return codes == CodeType::kI8 ? 0 : 1 << (code_bits(codes) - 1);
}

// 0 where a number of the row is not finite.
HWY_INLINE VI finite_code(const IntegerCoding& rule, V number) {
  return rule.code(hn::IfThenElseZero(rule.is_finite, number));
}

// From the reach of a group's codes. Odd, so that no product lies half way between integers: what
// is always rounded up there would not average out over many keys.
HWY_INLINE VI multiplier_of(const IntegerCoding& rule, V reach) {
  constexpr float kFiner = 1 << kRowShift;
  return hn::Or(finite_code(rule, hn::Mul(reach, hn::Set(kF32, kFiner))), hn::Set(kI32, 1));
}

// Rows whose scales are collected before anything is computed from them: numbers that were just
// written piece by piece cannot be read as vectors yet.
constexpr int kRowsAtOnce = 64;

// A scale as stored, and one with the minimum behind it.
struct HalfScale {
  uint16_t scale;
};
struct HalfScaleAndShift {
  uint32_t both;  // the scale low
};
struct ScaleAndShift {
  float scale, shift;
};

HWY_INLINE V half_numbers(hn::Vec<hn::Rebind<uint16_t, F32>> bits) {
#if HWY_TARGET == HWY_SCALAR
  return hn::Set(kF32, widened<float>(F16Bits{bits.raw}));
#else
  const hn::Rebind<hwy::float16_t, F32> half;
  return hn::PromoteTo(kF32, hn::BitCast(half, bits));
#endif
}

// A vector of scales, and of what accompanies them.
HWY_INLINE void split(const HalfScale* from, V& scale, V& shift) {
  const hn::Rebind<uint16_t, F32> halves;
  scale = half_numbers(hn::LoadU(halves, &from->scale));
  shift = hn::Zero(kF32);
}
HWY_INLINE void split(const HalfScaleAndShift* from, V& scale, V& shift) {
  const hn::Rebind<uint16_t, F32> halves;
  const VU both = hn::LoadU(kU32, &from->both);
  scale = half_numbers(hn::TruncateTo(halves, both));
  shift = half_numbers(hn::TruncateTo(halves, hn::ShiftRight<16>(both)));
}
HWY_INLINE void split(const ScaleAndShift* from, V& scale, V& shift) {
  hn::LoadInterleaved2(kF32, &from->scale, scale, shift);
}

// The scales of `rows` rows, a row after the other; further ones, up to a whole vector, repeat the
// last.
template <class Scales>
HWY_INLINE void collect_scales(const char* from, ptrdiff_t step, int rows, Scales* to) {
  const auto copy = [&](int i, const char* at) {
    hwy::UnsignedFromSize<sizeof(Scales)> bits;
    std::memcpy(&bits, at, sizeof(bits));
    asm("" : "+r"(bits));  // or g++ collects four in a register, one waiting for the other
    std::memcpy(to + i, &bits, sizeof(bits));
  };
  int i = 0;
  for (; i + 4 <= rows; i += 4, from += 4 * step) {
    copy(i, from);
    copy(i + 1, from + step);
    copy(i + 2, from + 2 * step);
    copy(i + 3, from + 3 * step);
  }
  for (; i < rows; ++i, from += step) copy(i, from);
  for (; i % static_cast<int>(kLanes) != 0; ++i) to[i] = to[rows - 1];
}

// The same of rows of two or four groups that follow each other in memory (64 or 128 channels): as
// many as fill vectors. Returns how many.
HWY_INLINE int collect_together([[maybe_unused]] const char* from, [[maybe_unused]] int groups,
                                [[maybe_unused]] int rows,
                                [[maybe_unused]] HalfScaleAndShift (*to)[kRowsAtOnce]) {
  int i = 0;
#if HWY_TARGET != HWY_SCALAR
  constexpr int kN = static_cast<int>(kLanes);
  for (; i + kN <= rows; i += kN) {
    const auto* const at = reinterpret_cast<const uint32_t*>(from) + i * groups;
    VU x[4];
    if (groups == 2)
      hn::LoadInterleaved2(kU32, at, x[0], x[1]);
    else
      hn::LoadInterleaved4(kU32, at, x[0], x[1], x[2], x[3]);
    for (int g = 0; g < groups; ++g) hn::StoreU(x[g], kU32, &to[g][i].both);
  }
#endif
  return i;
}

// Of codes counted from the middle: number = code * scale + the result.
template <CodeType kType, CodeShift kShift>
HWY_INLINE V shift_from_middle(V scale, V shift) {
  const V middle = hn::Set(kF32, static_cast<float>(code_middle(kType)));
  if constexpr (kShift == CodeShift::kZero) return hn::Mul(hn::Sub(middle, shift), scale);
  return hn::Add(hn::Mul(middle, scale), shift);
}

template <class Scales, CodeType kType, CodeShift kShift>
HWY_NOINLINE void find_integers_of(const FindIntegersArgs& args) {
  constexpr int kN = static_cast<int>(kLanes);
  constexpr bool kShifts = kShift != CodeShift::kNone;
  const RowCoding coding = args.coding;
  const IntegerRules to = args.to;
  const int groups = code_groups(coding, args.columns);
  const ptrdiff_t group_step =
      coding.in_blocks ? code_bytes(coding, kCodeGroup) : static_cast<ptrdiff_t>(sizeof(Scales));
  const V most = hn::Set(kF32, static_cast<float>(1 << (code_bits(kType) - 1)));
  HWY_ALIGN Scales scales[kMostHeadDim / kCodeGroup][kRowsAtOnce];
  for (int first = 0; first < args.rows; first += kRowsAtOnce) {
    const int rows = HWY_MIN(kRowsAtOnce, args.rows - first);
    const char* const from = args.scales + first * args.scale_step;
    int done = 0;
    if constexpr (std::is_same_v<Scales, HalfScaleAndShift>) {
      const bool is_aligned = reinterpret_cast<uintptr_t>(from) % sizeof(Scales) == 0;
      if ((groups == 2 || groups == 4) && args.scale_step == groups * group_step && is_aligned)
        done = collect_together(from, groups, rows, scales);
    }
    for (int g = 0; g < groups && done < rows; ++g)
      collect_scales(from + done * args.scale_step + g * group_step, args.scale_step, rows - done,
                     scales[g] + done);
    for (int row = 0; row < rows; row += kN) {
      HWY_ALIGN float reaches[kMostHeadDim / kCodeGroup][kLanes];
      HWY_ALIGN float shifts[kShifts ? kMostHeadDim / kCodeGroup : 1][kLanes];
      VI largest = hn::Zero(kI32);
      for (int g = 0; g < groups; ++g) {
        V scale, shift;
        split(scales[g] + row, scale, shift);
        const V reach = hn::Mul(scale, most);
        hn::Store(reach, kF32, reaches[g]);
        V bound = hn::Abs(reach);
        if constexpr (kShifts) {
          const V offset = shift_from_middle<kType, kShift>(scale, shift);
          hn::Store(offset, kF32, shifts[g]);
          bound = hn::Add(bound, hn::Abs(offset));
        }
        largest = hn::Max(largest, magnitude_bits(bound));
      }
      const IntegerCoding rule(largest, kRowShift);
      const auto write = [&](VI number, int32_t* out) HWY_ATTR {
        hn::StoreU(hn::BitCast(kI32, IntegerCoding::pair_of(number, number)), kI32,
                   out + first + row);
      };
      for (int g = 0; g < groups; ++g) {
        write(multiplier_of(rule, hn::Load(kF32, reaches[g])), to.multipliers + g * to.step);
        if constexpr (kShifts)
          write(finite_code(rule, hn::Load(kF32, shifts[g])), to.offsets + g * to.step);
      }
      hn::StoreU(rule.inverse, kF32, to.scales + first + row);
    }
  }
}

// Codes of i8 whose channels have a scale each, the same for all rows.
HWY_NOINLINE void find_channel_integers(const FindIntegersArgs& args) {
  constexpr int kN = static_cast<int>(kLanes);
  HWY_ALIGN float reaches[kMostHeadDim + kLanes] = {};
  std::memcpy(reaches, args.scales, static_cast<size_t>(args.columns) * sizeof(float));
  const V most = hn::Set(kF32, 128);
  VI largest = hn::Zero(kI32);
  for (int c = 0; c < args.columns; c += kN) {
    const V reach = hn::Mul(hn::Load(kF32, reaches + c), most);
    hn::Store(reach, kF32, reaches + c);
    largest = hn::Max(largest, magnitude_bits(reach));
  }
  const IntegerCoding rule = coding_of(largest, kRowShift);
  auto* const to = reinterpret_cast<int16_t*>(args.to.multipliers);
  for (int c = 0; c < args.columns; c += kN) {
    HWY_ALIGN int32_t codes[kLanes];
    hn::Store(multiplier_of(rule, hn::Load(kF32, reaches + c)), kI32, codes);
    for (int i = 0; i < HWY_MIN(kN, args.columns - c); ++i)
      to[c + i] = static_cast<int16_t>(codes[i]);
  }
  for (int row = 0; row < args.rows; ++row) args.to.scales[row] = hn::GetLane(rule.inverse);
}

inline void find_integers(const FindIntegersArgs& args) noexcept {
  if (args.coding.group == 1) return find_channel_integers(args);
  const bool shifts = args.coding.shift != CodeShift::kNone;
  switch (args.coding.codes) {
    case CodeType::kI8:
      return find_integers_of<HalfScale, CodeType::kI8, CodeShift::kNone>(args);
    case CodeType::kU8:
      return find_integers_of<ScaleAndShift, CodeType::kU8, CodeShift::kZero>(args);
    case CodeType::kU4:
      return shifts ? find_integers_of<HalfScaleAndShift, CodeType::kU4, CodeShift::kMinimum>(args)
                    : find_integers_of<HalfScale, CodeType::kU4, CodeShift::kNone>(args);
    default:  // fp8 are no integers
      return;
  }
}

// A code counted from the middle, to an integer by its group's multiplier and offset.
template <CodeType kType>
HWY_INLINE int16_t integer_of_code(const uint8_t* codes, int channel, int multiplier, int offset) {
  constexpr int kBits = code_bits(kType);
  int code;
  if constexpr (kType == CodeType::kU4)
    code = channel < kCodeGroup / 2 ? codes[channel] & 15 : codes[channel - kCodeGroup / 2] >> 4;
  else if constexpr (kType == CodeType::kI8)
    code = static_cast<int8_t>(codes[channel]);
  else
    code = codes[channel];
  constexpr int kDropped = kBits - 1 + kRowShift;
  const int product = (code - code_middle(kType)) * multiplier;
  return static_cast<int16_t>(((product + (1 << (kDropped - 1))) >> kDropped) + offset);
}

#if HWY_TARGET != HWY_SCALAR

// Codes [channel, channel + kWordLanes) of a group, counted from the middle, kRowShift bits below
// the top of 16, as MulFixedPoint15 wants them.
template <CodeType kType>
HWY_INLINE hn::Vec<Words> high_codes(const uint8_t* codes, int channel) {
  const hn::RebindToUnsigned<Words> words;
  if constexpr (kType == CodeType::kI8) {
    const hn::Rebind<int8_t, Words> bytes;
    const auto* at = reinterpret_cast<const int8_t*>(codes + channel);
    return hn::ShiftLeft<8 - kRowShift>(hn::PromoteTo(kWords, hn::LoadU(bytes, at)));
  } else if constexpr (kType == CodeType::kU8) {
    const hn::Rebind<uint8_t, Words> bytes;
    const auto x = hn::PromoteTo(words, hn::LoadU(bytes, codes + channel));
    return hn::Sub(hn::BitCast(kWords, hn::ShiftLeft<8 - kRowShift>(x)),
                   hn::Set(kWords, 0x8000 >> kRowShift));
  } else {
    const hn::Rebind<uint8_t, Words> bytes;
    constexpr int kHalf = kCodeGroup / 2;
    const auto nibble = hn::Set(words, 0xf000 >> kRowShift);
    const auto of = [&](auto x) HWY_ATTR {
      return hn::Sub(hn::BitCast(kWords, hn::And(x, nibble)), hn::Set(kWords, 0x8000 >> kRowShift));
    };
    if constexpr (kWordLanes > kHalf) {  // the 16 bytes twice: low halves, then high ones
      HWY_ALIGN static constexpr uint16_t kFactors[32] = {
          256, 256, 256, 256, 256, 256, 256, 256, 256, 256, 256, 256, 256, 256, 256, 256,  //
          16,  16,  16,  16,  16,  16,  16,  16,  16,  16,  16,  16,  16,  16,  16,  16};
      const auto x = hn::PromoteTo(words, hn::LoadDup128(bytes, codes));
      return of(hn::Mul(x, hn::Load(words, kFactors)));
    } else {
      const auto x = hn::PromoteTo(words, hn::LoadU(bytes, codes + channel % kHalf));
      return channel < kHalf ? of(hn::ShiftLeft<12 - kRowShift>(x))
                             : of(hn::ShiftLeft<8 - kRowShift>(x));
    }
  }
}

#endif

// Channels [0, count) of some rows under one multiplier each.
template <CodeType kType, bool kShifts, bool kIsGroup>
HWY_INLINE void integer_channels(const IntegerRowsArgs& args, const char* from, int count,
                                 const int32_t* multipliers, const int32_t* offsets, int16_t* out) {
  const ptrdiff_t code_step = args.code_step, out_step = args.out_step;
  for (int row = 0, rows = args.rows; row < rows; ++row, from += code_step, out += out_step) {
    const auto* codes = reinterpret_cast<const uint8_t*>(from);
    int c = 0;
#if HWY_TARGET != HWY_SCALAR
    const auto factor = hn::BitCast(kWords, hn::Set(kI32, multipliers[row]));
    const auto shift = hn::BitCast(kWords, hn::Set(kI32, kShifts ? offsets[row] : 0));
    const auto write = [&](int channel) HWY_ATTR {
      auto x = hn::MulFixedPoint15(high_codes<kType>(codes, channel), factor);
      if constexpr (kShifts) x = hn::Add(x, shift);
      hn::StoreU(x, kWords, out + channel);
    };
    if constexpr (kIsGroup) {
      QUIRE_UNROLL for (; c < kCodeGroup; c += kWordLanes) write(c);
      continue;
    }
    for (; c + kWordLanes <= count; c += kWordLanes) write(c);
#endif
    for (; c < count; ++c) {
      out[c] = integer_of_code<kType>(codes, c, static_cast<int16_t>(multipliers[row]),
                                      kShifts ? static_cast<int16_t>(offsets[row]) : 0);
    }
  }
}

// Each channel under a multiplier of its own.
HWY_NOINLINE void integer_channel_rows(const IntegerRowsArgs& args) {
  const auto* const multipliers = reinterpret_cast<const int16_t*>(args.by.multipliers);
  const char* from = args.codes;
  int16_t* out = args.out;
  for (int row = 0; row < args.rows; ++row, from += args.code_step, out += args.out_step) {
    const auto* codes = reinterpret_cast<const uint8_t*>(from);
    int c = 0;
#if HWY_TARGET != HWY_SCALAR
    for (; c + kWordLanes <= args.columns; c += kWordLanes) {
      const auto x = high_codes<CodeType::kI8>(codes, c);
      hn::StoreU(hn::MulFixedPoint15(x, hn::LoadU(kWords, multipliers + c)), kWords, out + c);
    }
#endif
    for (; c < args.columns; ++c)
      out[c] = integer_of_code<CodeType::kI8>(codes, c, multipliers[c], 0);
  }
}

template <CodeType kType, bool kShifts>
HWY_NOINLINE void integer_rows_of(const IntegerRowsArgs& args) {
  const RowCoding coding = args.coding;
  const IntegerRules by = args.by;
  if (coding.group == 1) {
    integer_channel_rows(args);
  } else if (coding.group == 0) {
    integer_channels<kType, kShifts, false>(args, args.codes, args.columns, by.multipliers,
                                            by.offsets, args.out);
  } else {
    const char* from = args.codes + (coding.in_blocks ? 2 : 0);
    for (int c = 0, g = 0; c < args.columns; c += kCodeGroup, ++g) {
      integer_channels<kType, kShifts, true>(args, from, kCodeGroup, by.multipliers + g * by.step,
                                             by.offsets + g * by.step, args.out + c);
      from += code_bytes(coding, kCodeGroup);
    }
  }
  for (int row = 0; row < args.rows && args.columns < args.out_columns; ++row) {
    int16_t* const to = args.out + row * args.out_step;
    for (int c = args.columns; c < args.out_columns; ++c) to[c] = 0;
  }
}

inline void integer_rows(const IntegerRowsArgs& args) noexcept {
  const bool shifts = args.coding.shift != CodeShift::kNone;
  switch (args.coding.codes) {
    case CodeType::kI8:
      return integer_rows_of<CodeType::kI8, false>(args);
    case CodeType::kU8:
      return integer_rows_of<CodeType::kU8, true>(args);
    case CodeType::kU4:
      return shifts ? integer_rows_of<CodeType::kU4, true>(args)
                    : integer_rows_of<CodeType::kU4, false>(args);
    default:  // fp8 are no integers
      return;
  }
}

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
