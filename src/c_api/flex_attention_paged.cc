// The C interface: flex_attention over keys and values in pages. C API layer.
#include "c_api/attention_options.h"
#include "quire/paged.h"

using namespace quire;

quire_status quire_flex_attention_paged(const quire_tensor* q, const quire_paged_keys* keys,
                                        const quire_paged_attention_options* options,
                                        const quire_tensor* out) {
  return c_api::guarded([&] {
    constexpr const char* kName = "quire_flex_attention_paged";
    const ConstTensorView q_view = c_api::tensor(q, kName, "q");
    const quire_paged_keys given_keys = c_api::versioned(keys, kName, "keys");
    const PagedKeys pages{
        .k = c_api::tensor(given_keys.k, kName, "keys.k"),
        .v = c_api::tensor(given_keys.v, kName, "keys.v"),
        .page_table = c_api::tensor(given_keys.page_table, kName, "keys.page_table"),
        .lengths = c_api::tensor(given_keys.lengths, kName, "keys.lengths")};
    const auto given = c_api::versioned_or_default(options, kName, "options");
    const auto to = c_api::outputs<AttentionPlan::Outputs>(out, given, kName);
    auto wanted = c_api::shared_options<PagedKeysOptions>(given, kName);
    if (given.mask_mod != nullptr) wanted.mask_mod = given.mask_mod->mod;
    if (given.block_mask != nullptr) wanted.block_mask = given.block_mask->mask;
    wanted.q_begin = c_api::q_begin(given, q_view, kName);
    c_api::check_outputs(to, q_view, pages.v);
    PagedKeysPlan plan(q_view, pages, wanted);
    plan.run(q_view, pages.k, pages.v, to);
  });
}
