// Maps opcodes to functions, for one ISA and both precisions. Kernels layer.
#pragma once
#include "kernels/tile/tile_dot-inl.h"
#include "kernels/tile/tile_float-inl.h"
#include "kernels/tile/tile_int-inl.h"
#include "kernels/tile/tile_load-inl.h"
#include "kernels/tile/tile_mask-inl.h"

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

  template <class Operation, class In, class Out>
  constexpr void lanes_op2(TileOp op) {
    set(op, TileAccess::kVectorVector, TileFinish::kStore,
        &lanes_binary<Operation, In, Out, PerLane, PerLane>);
    set(op, TileAccess::kVectorBroadcast, TileFinish::kStore,
        &lanes_binary<Operation, In, Out, PerLane, PerRow>);
    set(op, TileAccess::kBroadcastVector, TileFinish::kStore,
        &lanes_binary<Operation, In, Out, PerRow, PerLane>);
  }

  // Float operations. Only f32 has variants that write the score tile; f64 leaves that to kCopyF.
  template <class T, TileOp kOp, class Operation>
  constexpr void float_op() {
    if constexpr (std::is_same_v<T, double>) {
      set(kOp, TileAccess::kVectorVector, TileFinish::kStore, &lanes_unary<Operation, T, T>);
    } else {
      unary_finish<kOp, Operation, TileFinish::kStore>();
      unary_finish<kOp, Operation, TileFinish::kScore>();
      unary_finish<kOp, Operation, TileFinish::kMaskedScore>();
    }
  }
  template <TileOp kOp, class Operation, TileFinish kFinish>
  constexpr void unary_finish() {
    if constexpr (kFinish == TileFinish::kStore || finishes(kOp))
      set(kOp, TileAccess::kVectorVector, kFinish, &float_unary<Operation, kFinish>);
  }
  template <class T, TileOp kOp, class Operation>
  constexpr void float_op2() {
    if constexpr (std::is_same_v<T, double>) {
      lanes_op2<Operation, T, T>(kOp);
    } else {
      binary_finish<kOp, Operation, TileFinish::kStore>();
      binary_finish<kOp, Operation, TileFinish::kScore>();
      binary_finish<kOp, Operation, TileFinish::kMaskedScore>();
    }
  }
  template <TileOp kOp, class Operation, TileFinish kFinish>
  constexpr void binary_finish() {
    if constexpr (kFinish == TileFinish::kStore || finishes(kOp)) {
      set(kOp, TileAccess::kVectorVector, kFinish,
          &float_binary<Operation, PerLane, PerLane, kFinish>);
      set(kOp, TileAccess::kVectorBroadcast, kFinish,
          &float_binary<Operation, PerLane, PerRow, kFinish>);
      set(kOp, TileAccess::kBroadcastVector, kFinish,
          &float_binary<Operation, PerRow, PerLane, kFinish>);
    }
  }

  // Long functions that take several vectors in step.
  template <TileFinish kFinish>
  constexpr void in_step() {
    set(TileOp::kTanhF, TileAccess::kVectorVector, kFinish, &float_in_step<TanhInStep, kFinish>);
    if constexpr (kFinish == TileFinish::kStore || finishes(TileOp::kSigmoidF))
      set(TileOp::kSigmoidF, TileAccess::kVectorVector, kFinish,
          &float_in_step<SigmoidInStep, kFinish>);
  }
  template <TileFinish kFinish>
  constexpr void divisions_by_uniform() {
    set(TileOp::kDivF, TileAccess::kVectorBroadcast, kFinish, &float_divide<kFinish>);
    set(TileOp::kSoftcapF, TileAccess::kVectorBroadcast, kFinish, &float_softcap<kFinish>);
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
  float_op<T, TileOp::kCopyF, FloatCopy>();
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
  float_op<T, TileOp::kNegF, FloatNeg>();
  float_op<T, TileOp::kAbsF, FloatAbs>();
  float_op<T, TileOp::kSignF, FloatSign>();
  float_op<T, TileOp::kFloorF, FloatFloor>();
  float_op<T, TileOp::kCeilF, FloatCeil>();
  float_op<T, TileOp::kRoundF, FloatRound>();
  float_op<T, TileOp::kTruncF, FloatTrunc>();
#define QUIRE_FLOAT_FUNCTION(name, ...) float_op<T, TileOp::k##name##F, Float##name>();
#include "quire/op_table.inc"
  float_op2<T, TileOp::kAddF, FloatAdd>();
  float_op2<T, TileOp::kSubF, FloatSub>();
  float_op2<T, TileOp::kMulF, FloatMul>();
  float_op2<T, TileOp::kDivF, FloatDiv>();
  if constexpr (std::is_same_v<T, float>) {
    in_step<TileFinish::kStore>();
    in_step<TileFinish::kScore>();
    in_step<TileFinish::kMaskedScore>();
    divisions_by_uniform<TileFinish::kStore>();
    divisions_by_uniform<TileFinish::kScore>();
    divisions_by_uniform<TileFinish::kMaskedScore>();
  }
  float_op2<T, TileOp::kPowF, FloatPow>();
  float_op2<T, TileOp::kMinF, FloatMin>();
  float_op2<T, TileOp::kMaxF, FloatMax>();
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
  set_all(op(TileOp::kBitNotI), &lanes_unary<IntNot, T, T>);
  lanes_op2<IntAdd, T, T>(op(TileOp::kAddI));
  lanes_op2<IntSub, T, T>(op(TileOp::kSubI));
  lanes_op2<IntMul, T, T>(op(TileOp::kMulI));
  lanes_op2<IntFloorDiv, T, T>(op(TileOp::kFloorDivI));
  lanes_op2<IntMod, T, T>(op(TileOp::kModI));
  lanes_op2<IntMin, T, T>(op(TileOp::kMinI));
  lanes_op2<IntMax, T, T>(op(TileOp::kMaxI));
  lanes_op2<IntAnd, T, T>(op(TileOp::kBitAndI));
  lanes_op2<IntOr, T, T>(op(TileOp::kBitOrI));
  lanes_op2<IntXor, T, T>(op(TileOp::kBitXorI));
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
  if constexpr (std::is_same_v<T, float>) {
    set(TileOp::kDotF, TileAccess::kVectorBroadcast, TileFinish::kStore,
        &float_dot<PerLane, PerRow>);
    set(TileOp::kDotF, TileAccess::kBroadcastVector, TileFinish::kStore,
        &float_dot<PerRow, PerLane>);
  } else {
    set(TileOp::kDotF, TileAccess::kVectorBroadcast, TileFinish::kStore,
        &trailing_chain<T, PerLane, PerRow, true>);
    set(TileOp::kDotF, TileAccess::kBroadcastVector, TileFinish::kStore,
        &trailing_chain<T, PerRow, PerLane, true>);
  }
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
