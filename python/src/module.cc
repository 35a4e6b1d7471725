// The module quire._core: everything Python sees of the library. The package python/quire presents
// it to users. Python layer.
#include "context_parallel.h"
#include "register.h"

NB_MODULE(_core, module) {
  using namespace quire::python;
  nb::set_leak_warnings(false);  // what a program still holds at its end is not reported
  module.doc() = "The extension of quire; use the package.";
  register_errors(module);
  register_views(module);
  register_exprs(module);
  register_functions(module);
  register_mods(module);
  register_library(module);
  register_gallery(module);
  register_block_mask(module);
  register_quantize(module);
  register_attention(module);
  register_torch_state(module);
  register_quick_call(module);
  register_evaluate(module);
  register_jagged(module);
  register_sdpa(module);
  register_paged_attention(module);
  register_kv_cache(module);
  register_merge_states(module);
  register_top_k_keys(module);
  register_context_parallel(module);
  register_draw(module);
  register_jax(module);
  register_openmp(module);
  register_runtime(module);
}
