// The primitives of the prefill kernel of one ISA, collected. Kernels layer.
#pragma once
#include "kernels/dropout-inl.h"
#include "kernels/key_weights-inl.h"
#include "kernels/pairs-inl.h"
#include "kernels/prefill/accumulate-inl.h"
#include "kernels/prefill/finish-inl.h"
#include "kernels/prefill/fold-inl.h"
#include "kernels/prefill/integers-inl.h"
#include "kernels/prefill/load_queries-inl.h"
#include "kernels/prefill/mask_scores-inl.h"
#include "kernels/prefill/scores-inl.h"
#include "kernels/prefill/take_weights-inl.h"
#include "kernels/prefill/weigh_heads-inl.h"
#include "kernels/rope-inl.h"

// Outside HWY_BEFORE_NAMESPACE: addresses only.
namespace quire::kernels::QUIRE_ISA_NS {

template <class T>
constexpr ForwardFunctions<T> kForward{.load_queries = &load_queries<T>,
                                       .copy_rows = &copy_rows<T>,
                                       .scores = &scores<FmaProduct<T>>,
                                       .mask_scores = &mask_scores<T>,
                                       .softmax = &softmax<T>,
                                       .take_weights = &take_weights<T>,
                                       .rotate = &rotate<T>,
                                       .drop = &drop_panel<T>,
                                       .accumulate = &accumulate<FmaProduct<T>>,
                                       .fold = &fold<T>,
                                       .finish = &finish<T>,
                                       .weigh_heads = &weigh_heads<T>,
                                       .panel_weights = &panel_weights<T>,
                                       .row_weights = &row_weights<T>};

constexpr PairFunctions kIntegerFunctions{.code_queries = &code_queries,
                                          .widen_codes = &widen_rows_i16,
                                          .scores = &integer_scores,
                                          .pair_values = &pair_values,
                                          .pair_weights = &integer_weights,
                                          .accumulate = &integer_accumulate};

#if defined(QUIRE_BF16_DOT)
constexpr PairFunctions kPairFunctions{.load_queries = &pair_load_queries,
                                       .copy_rows = &pair_copy_rows,
                                       .widen_codes = &widen_rows_bf16,
                                       .scores = &scores<PairProduct>,
                                       .pair_values = &pair_values,
                                       .softmax = &pair_softmax,
                                       .pair_weights = &pair_weights,
                                       .accumulate = &accumulate<PairProduct>};
constexpr const PairFunctions* kPairs = &kPairFunctions;
#else
constexpr const PairFunctions* kPairs = nullptr;
#endif

}  // namespace quire::kernels::QUIRE_ISA_NS
