// Which function stands behind which opcode, for one ISA and both precisions. Kernels layer.
#pragma once
#include "kernels/tile_float-inl.h"
#include "kernels/tile_int-inl.h"
#include "kernels/tile_load-inl.h"
#include "kernels/tile_mask-inl.h"

HWY_BEFORE_NAMESPACE();
namespace quire::kernels::QUIRE_ISA_NS {

struct TableBuilder {
  TileFunctions table{};

  constexpr void set(TileOp op, TileAccess access, TileFinish finish, TileFunction function) {
    table.at[static_cast<int>(op)][static_cast<int>(access)][static_cast<int>(finish)] = function;
  }
  constexpr void set_all(TileOp op, TileFunction function) {
    for (int access = 0; access < kTileAccessCount; ++access)
      table.at[static_cast<int>(op)][access][static_cast<int>(TileFinish::kStore)] = function;
  }

  // Float operations: f32 fuses the store into the score tile, f64 leaves that to kCopyF.
  template <class T, class Operation>
  constexpr void float_op(TileOp op) {
    if constexpr (std::is_same_v<T, float>) {
      set(op, TileAccess::kVectorVector, TileFinish::kStore,
          &float_unary<Operation, TileFinish::kStore>);
      set(op, TileAccess::kVectorVector, TileFinish::kScore,
          &float_unary<Operation, TileFinish::kScore>);
      set(op, TileAccess::kVectorVector, TileFinish::kMaskedScore,
          &float_unary<Operation, TileFinish::kMaskedScore>);
    } else {
      set(op, TileAccess::kVectorVector, TileFinish::kStore, &lanes_unary<Operation, T, T>);
    }
  }
  template <class Operation, class A, class B>
  constexpr void float_access(TileOp op, TileAccess access) {
    set(op, access, TileFinish::kStore, &float_binary<Operation, A, B, TileFinish::kStore>);
    set(op, access, TileFinish::kScore, &float_binary<Operation, A, B, TileFinish::kScore>);
    set(op, access, TileFinish::kMaskedScore,
        &float_binary<Operation, A, B, TileFinish::kMaskedScore>);
  }
  template <class Operation, class In, class Out>
  constexpr void lanes_op2(TileOp op) {
    set(op, TileAccess::kVectorVector, TileFinish::kStore,
        &lanes_binary<Operation, In, Out, PerLane, PerLane>);
    set(op, TileAccess::kVectorBroadcast, TileFinish::kStore,
        &lanes_binary<Operation, In, Out, PerLane, PerRow>);
    set(op, TileAccess::kBroadcastVector, TileFinish::kStore,
        &lanes_binary<Operation, In, Out, PerRow, PerLane>);
  }
  template <class T, class Operation>
  constexpr void float_op2(TileOp op) {
    if constexpr (std::is_same_v<T, float>) {
      float_access<Operation, PerLane, PerLane>(op, TileAccess::kVectorVector);
      float_access<Operation, PerLane, PerRow>(op, TileAccess::kVectorBroadcast);
      float_access<Operation, PerRow, PerLane>(op, TileAccess::kBroadcastVector);
    } else {
      lanes_op2<Operation, T, T>(op);
    }
  }

  template <class T>
  constexpr void floats();
  template <class T>
  constexpr void copies();
  template <class T>
  constexpr void ints(TileOp first);
  template <class T>
  constexpr void conversions();
  template <class T>
  constexpr void compares(TileOp first);
  template <class T>
  constexpr void selects(TileOp op);
  template <class T>
  constexpr void buffers();
  constexpr void leaves_and_bits();
};

template <class T>
constexpr void TableBuilder::copies() {
  float_op<T, FloatCopy>(TileOp::kCopyF);
  if constexpr (std::is_same_v<T, float>) {
    set(TileOp::kCopyF, TileAccess::kBroadcastVector, TileFinish::kScore,
        &float_fill<TileFinish::kScore>);
    set(TileOp::kCopyF, TileAccess::kBroadcastVector, TileFinish::kMaskedScore,
        &float_fill<TileFinish::kMaskedScore>);
  } else {
    set(TileOp::kCopyF, TileAccess::kVectorVector, TileFinish::kScore,
        &finish_f64<PerLane, TileFinish::kScore>);
    set(TileOp::kCopyF, TileAccess::kVectorVector, TileFinish::kMaskedScore,
        &finish_f64<PerLane, TileFinish::kMaskedScore>);
    set(TileOp::kCopyF, TileAccess::kBroadcastVector, TileFinish::kScore,
        &finish_f64<PerRow, TileFinish::kScore>);
    set(TileOp::kCopyF, TileAccess::kBroadcastVector, TileFinish::kMaskedScore,
        &finish_f64<PerRow, TileFinish::kMaskedScore>);
  }
}

template <class T>
constexpr void TableBuilder::floats() {
  copies<T>();
  float_op<T, FloatNeg>(TileOp::kNegF);
  float_op<T, FloatAbs>(TileOp::kAbsF);
  float_op<T, FloatSign>(TileOp::kSignF);
  float_op<T, FloatFloor>(TileOp::kFloorF);
  float_op<T, FloatCeil>(TileOp::kCeilF);
  float_op<T, FloatRound>(TileOp::kRoundF);
  float_op<T, FloatTrunc>(TileOp::kTruncF);
  float_op<T, FloatExp>(TileOp::kExpF);
  float_op<T, FloatExp2>(TileOp::kExp2F);
  float_op<T, FloatExpm1>(TileOp::kExpm1F);
  float_op<T, FloatLog>(TileOp::kLogF);
  float_op<T, FloatLog2>(TileOp::kLog2F);
  float_op<T, FloatLog1p>(TileOp::kLog1pF);
  float_op<T, FloatSqrt>(TileOp::kSqrtF);
  float_op<T, FloatRsqrt>(TileOp::kRsqrtF);
  float_op<T, FloatSin>(TileOp::kSinF);
  float_op<T, FloatCos>(TileOp::kCosF);
  float_op<T, FloatTanh>(TileOp::kTanhF);
  float_op<T, FloatSigmoid>(TileOp::kSigmoidF);
  float_op<T, FloatErf>(TileOp::kErfF);
  float_op<T, FloatRelu>(TileOp::kReluF);
  float_op<T, FloatGelu>(TileOp::kGeluF);
  float_op<T, FloatGeluTanh>(TileOp::kGeluTanhF);
  float_op<T, FloatSilu>(TileOp::kSiluF);
  float_op<T, FloatSoftplus>(TileOp::kSoftplusF);
  float_op2<T, FloatAdd>(TileOp::kAddF);
  float_op2<T, FloatSub>(TileOp::kSubF);
  float_op2<T, FloatMul>(TileOp::kMulF);
  float_op2<T, FloatDiv>(TileOp::kDivF);
  float_op2<T, FloatPow>(TileOp::kPowF);
  float_op2<T, FloatMin>(TileOp::kMinF);
  float_op2<T, FloatMax>(TileOp::kMaxF);
  lanes_op2<FloorDivLane, T, T>(TileOp::kFloorDivF);
  lanes_op2<ModLane, T, T>(TileOp::kModF);
}

// The opcodes of one integer type follow each other, from its kNeg on.
template <class T>
constexpr void TableBuilder::ints(TileOp first) {
  const auto op = [first](TileOp int32_op) {
    return static_cast<TileOp>(static_cast<int>(first) + static_cast<int>(int32_op) -
                               static_cast<int>(TileOp::kNegI));
  };
  set_all(op(TileOp::kNegI), &lanes_unary<IntNeg, T, T>);
  set_all(op(TileOp::kAbsI), &lanes_unary<IntAbs, T, T>);
  set_all(op(TileOp::kSignI), &lanes_unary<IntSign, T, T>);
  set_all(op(TileOp::kNotI), &lanes_unary<IntNot, T, T>);
  lanes_op2<IntAdd, T, T>(op(TileOp::kAddI));
  lanes_op2<IntSub, T, T>(op(TileOp::kSubI));
  lanes_op2<IntMul, T, T>(op(TileOp::kMulI));
  lanes_op2<IntFloorDiv, T, T>(op(TileOp::kFloorDivI));
  lanes_op2<IntMod, T, T>(op(TileOp::kModI));
  lanes_op2<IntMin, T, T>(op(TileOp::kMinI));
  lanes_op2<IntMax, T, T>(op(TileOp::kMaxI));
  lanes_op2<IntAnd, T, T>(op(TileOp::kAndI));
  lanes_op2<IntOr, T, T>(op(TileOp::kOrI));
  lanes_op2<IntXor, T, T>(op(TileOp::kXorI));
}

template <class T>
constexpr void TableBuilder::conversions() {
  set_all(TileOp::kIntToF, &lanes_unary<ConvertTo<T>, int32_t, T>);
  set_all(TileOp::kLongToF, &lanes_unary<ConvertTo<T>, int64_t, T>);
  set_all(TileOp::kFToLong, &lanes_unary<FloatToInt64, T, int64_t>);
  set_all(TileOp::kIntToLong, &lanes_unary<ConvertTo<int64_t>, int32_t, int64_t>);
  set_all(TileOp::kLongToInt, &lanes_unary<ConvertTo<int32_t>, int64_t, int32_t>);
  set_all(TileOp::kMaskToInt, &mask_to_int);
}

template <class T>
constexpr void TableBuilder::compares(TileOp first) {
  const auto op = [first](int i) { return static_cast<TileOp>(static_cast<int>(first) + i); };
  const auto put = [&](TileOp o, TileFunction vv, TileFunction vb, TileFunction bv) {
    set(o, TileAccess::kVectorVector, TileFinish::kStore, vv);
    set(o, TileAccess::kVectorBroadcast, TileFinish::kStore, vb);
    set(o, TileAccess::kBroadcastVector, TileFinish::kStore, bv);
  };
  put(op(0), &compare<Lt, T, PerLane, PerLane>, &compare<Lt, T, PerLane, PerRow>,
      &compare<Lt, T, PerRow, PerLane>);
  put(op(1), &compare<Le, T, PerLane, PerLane>, &compare<Le, T, PerLane, PerRow>,
      &compare<Le, T, PerRow, PerLane>);
  put(op(2), &compare<Eq, T, PerLane, PerLane>, &compare<Eq, T, PerLane, PerRow>,
      &compare<Eq, T, PerRow, PerLane>);
  put(op(3), &compare<Ne, T, PerLane, PerLane>, &compare<Ne, T, PerLane, PerRow>,
      &compare<Ne, T, PerRow, PerLane>);
}

template <class T>
constexpr void TableBuilder::selects(TileOp op) {
  set(op, TileAccess::kVectorVector, TileFinish::kStore, &select<T, PerLane, PerLane>);
  set(op, TileAccess::kVectorBroadcast, TileFinish::kStore, &select<T, PerLane, PerRow>);
  set(op, TileAccess::kBroadcastVector, TileFinish::kStore, &select<T, PerRow, PerLane>);
  set(op, TileAccess::kBroadcastBroadcast, TileFinish::kStore, &select<T, PerRow, PerRow>);
}

// f32 selection can end a program.
template <class A, class B>
constexpr void float_selects(TableBuilder& to, TileAccess access) {
  to.set(TileOp::kSelectF, access, TileFinish::kStore, &float_select<A, B, TileFinish::kStore>);
  to.set(TileOp::kSelectF, access, TileFinish::kScore, &float_select<A, B, TileFinish::kScore>);
  to.set(TileOp::kSelectF, access, TileFinish::kMaskedScore,
         &float_select<A, B, TileFinish::kMaskedScore>);
}

template <class T>
constexpr void TableBuilder::buffers() {
  set_all(TileOp::kGatherIntF, &load_float<Gather<T, int32_t>>);
  set_all(TileOp::kGatherLongF, &load_float<Gather<T, int64_t>>);
  set_all(TileOp::kGatherIntI, &load_int<Gather<int32_t, int32_t>>);
  set_all(TileOp::kGatherLongI, &load_int<Gather<int32_t, int64_t>>);
  set_all(TileOp::kGatherIntL, &load_int<Gather<int64_t, int32_t>>);
  set_all(TileOp::kGatherLongL, &load_int<Gather<int64_t, int64_t>>);
  set_all(TileOp::kStridedF, &load_float<Strided<T>>);
  set_all(TileOp::kStridedI, &load_int<Strided<int32_t>>);
  set_all(TileOp::kStridedL, &load_int<Strided<int64_t>>);
  set_all(TileOp::kSumF, &trailing_chain<T, PerLane, PerLane, false>);
  set_all(TileOp::kSumL, &trailing_chain<int64_t, PerLane, PerLane, false>);
  set(TileOp::kDotF, TileAccess::kVectorVector, TileFinish::kStore,
      &trailing_chain<T, PerLane, PerLane, true>);
  set(TileOp::kDotF, TileAccess::kVectorBroadcast, TileFinish::kStore,
      &trailing_chain<T, PerLane, PerRow, true>);
  set(TileOp::kDotF, TileAccess::kBroadcastVector, TileFinish::kStore,
      &trailing_chain<T, PerRow, PerLane, true>);
  set(TileOp::kDotL, TileAccess::kVectorVector, TileFinish::kStore,
      &trailing_chain<int64_t, PerLane, PerLane, true>);
  set(TileOp::kDotL, TileAccess::kVectorBroadcast, TileFinish::kStore,
      &trailing_chain<int64_t, PerLane, PerRow, true>);
  set(TileOp::kDotL, TileAccess::kBroadcastVector, TileFinish::kStore,
      &trailing_chain<int64_t, PerRow, PerLane, true>);
}

constexpr void TableBuilder::leaves_and_bits() {
  set_all(TileOp::kConstI, &constant<int32_t>);
  set_all(TileOp::kConstL, &constant<int64_t>);
  set_all(TileOp::kConstM, &word_constant);
  set_all(TileOp::kStart, &iota<int64_t>);
  set_all(TileOp::kList, &copy_list);
  set_all(TileOp::kIotaI, &iota<int32_t>);
  set_all(TileOp::kIotaL, &iota<int64_t>);
  set_all(TileOp::kIndexI, &check_index<int32_t, PerLane>);
  set_all(TileOp::kIndexL, &check_index<int64_t, PerLane>);
  set_all(TileOp::kDivisorI, &check_divisor<int32_t, PerLane>);
  set_all(TileOp::kDivisorL, &check_divisor<int64_t, PerLane>);
  set_all(TileOp::kAndM, &word_binary<WordAnd>);
  set_all(TileOp::kOrM, &word_binary<WordOr>);
  set_all(TileOp::kXorM, &word_binary<WordXor>);
  set_all(TileOp::kNotM, &word_not);
  set_all(TileOp::kExpandRowM, &expand_rows);
  set_all(TileOp::kExpandDiagonalM, &expand_diagonals);
}

template <class T>
constexpr TileFunctions tile_functions() {
  TableBuilder to;
  to.floats<T>();
  to.ints<int32_t>(TileOp::kNegI);
  to.ints<int64_t>(TileOp::kNegL);
  to.lanes_op2<IntShl, int64_t, int64_t>(TileOp::kShlL);
  to.lanes_op2<IntShr, int64_t, int64_t>(TileOp::kShrL);
  to.lanes_op2<IntPow, int64_t, int64_t>(TileOp::kPowL);
  to.conversions<T>();
  to.compares<T>(TileOp::kLtF);
  to.compares<int32_t>(TileOp::kLtI);
  to.compares<int64_t>(TileOp::kLtL);
  if constexpr (std::is_same_v<T, float>) {
    float_selects<PerLane, PerLane>(to, TileAccess::kVectorVector);
    float_selects<PerLane, PerRow>(to, TileAccess::kVectorBroadcast);
    float_selects<PerRow, PerLane>(to, TileAccess::kBroadcastVector);
    float_selects<PerRow, PerRow>(to, TileAccess::kBroadcastBroadcast);
  } else {
    to.selects<T>(TileOp::kSelectF);
  }
  to.selects<int32_t>(TileOp::kSelectI);
  to.selects<int64_t>(TileOp::kSelectL);
  to.set_all(TileOp::kConstF, &constant<T>);
  to.buffers<T>();
  to.leaves_and_bits();
  return to.table;
}

constexpr TileFunctions kTileF32 = tile_functions<float>();
constexpr TileFunctions kTileF64 = tile_functions<double>();

}  // namespace quire::kernels::QUIRE_ISA_NS
HWY_AFTER_NAMESPACE();
