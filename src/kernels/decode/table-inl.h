// The tables of the decode kernel's primitives of one ISA. Kernels layer.
#pragma once
#include "kernels/decode/few_softmax-inl.h"
#include "kernels/decode/many_scores-inl.h"
#include "kernels/decode/many_values-inl.h"
#include "kernels/decode/rope_scores-inl.h"
#include "kernels/decode/softmax-inl.h"
#include "kernels/decode/values-inl.h"
#include "kernels/dropout-inl.h"

namespace quire::kernels::QUIRE_ISA_NS {

#if HWY_TARGET == HWY_SCALAR
constexpr auto kManyScores = nullptr;
constexpr auto kManyValues = nullptr;
#else
constexpr auto kManyScores = &many_scores;
constexpr auto kManyValues = &many_values;
#endif

constexpr DecodeFunctions<float> kDecodeF32{.scores = &any_scores_f32,
                                            .softmax = &row_softmax<float>,
                                            .take_weights = &take_row_weights<float>,
                                            .few_softmax = &few_softmax<float>,
                                            .drop = &drop_row<float>,
                                            .values = &values_f32,
                                            .many_scores = kManyScores,
                                            .many_values = kManyValues,
                                            .rescale = &rescale_numbers<float>,
                                            .code_numbers = &code_numbers,
                                            .code_weights = &code_weights,
                                            .reorder = &reorder<float>,
                                            .log = &log_f32,
                                            .exp2 = &exp2_number<float>};
constexpr DecodeFunctions<double> kDecodeF64{.scores = &scores_f64,
                                             .softmax = &row_softmax<double>,
                                             .take_weights = &take_row_weights<double>,
                                             .few_softmax = &few_softmax<double>,
                                             .drop = &drop_row<double>,
                                             .values = &values_f64,
                                             .many_scores = nullptr,
                                             .many_values = nullptr,
                                             .rescale = &rescale_numbers<double>,
                                             .code_numbers = nullptr,
                                             .code_weights = nullptr,
                                             .reorder = &reorder<double>,
                                             .log = &log_f64,
                                             .exp2 = &exp2_number<double>};

}  // namespace quire::kernels::QUIRE_ISA_NS
