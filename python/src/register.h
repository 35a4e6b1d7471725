// The functions with which each file of this folder registers itself in the module _core. Python
// layer.
#pragma once
#include <nanobind/nanobind.h>

namespace quire::python {

namespace nb = nanobind;

void register_errors(nb::module_& module);
void register_views(nb::module_& module);
void register_exprs(nb::module_& module);
void register_functions(nb::module_& module);
void register_mods(nb::module_& module);
void register_library(nb::module_& module);
void register_gallery(nb::module_& module);
void register_block_mask(nb::module_& module);
void register_quantize(nb::module_& module);
void register_attention(nb::module_& module);
void register_attention_options(nb::module_& module);
void register_attention_plans(nb::module_& module);
void register_torch_state(nb::module_& module);
void register_quick_call(nb::module_& module);
void register_evaluate(nb::module_& module);
void register_jagged(nb::module_& module);
void register_sdpa(nb::module_& module);
void register_paged_attention(nb::module_& module);
void register_kv_cache(nb::module_& module);
void register_merge_states(nb::module_& module);
void register_top_k_keys(nb::module_& module);
void register_draw(nb::module_& module);
void register_jax(nb::module_& module);
void register_openmp(nb::module_& module);
void register_runtime(nb::module_& module);

}  // namespace quire::python
