// The backward primitives of one ISA. Kernels layer.
#pragma once
#include "kernels/backward/elements-inl.h"
#include "kernels/backward/functions.h"
#include "kernels/backward/products-inl.h"

// Outside HWY_BEFORE_NAMESPACE: addresses only.
namespace quire::kernels::QUIRE_ISA_NS {

template <class T>
constexpr BackwardFunctions<T> kBackward{.weights = &weights<T>,
                                         .score_gradients = &score_gradients<T>,
                                         .formula_weights = &formula_weights<T>,
                                         .formula_gradients = &formula_gradients<T>,
                                         .apply_slopes = &apply_slopes<T>,
                                         .add_lane_sums = &add_lane_sums<T>,
                                         .add_to_keys = &add_to_keys<T>,
                                         .add_to_queries = &add_to_queries<T>,
                                         .add_rows = &add_rows<T>,
                                         .lane_dots = &lane_dots<T>,
                                         .is_finite = &is_finite<T>};

}  // namespace quire::kernels::QUIRE_ISA_NS
