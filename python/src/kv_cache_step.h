// What a step over a KVCache is in Python: a sequence, or a list of them with as many counts and
// arrays of ids; and the other types around the class KVCache. Python layer.
#pragma once
#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

#include "quire/kv_cache.h"
#include "view.h"

namespace quire::python {

using Ids = std::vector<std::int64_t>;

/// Integers in one row. Throws TypeError "[where] ..." for others.
Ids ids_of(const char* where, nb::handle ids);

/// What append, write and others take.
struct Step {
  std::vector<Ids> ids;
  std::vector<NewTokens> tokens;

  /// counts: an int, a list, or None: as many as there are ids, or 1.
  Step(const char* where, nb::handle sequences, nb::handle counts, nb::handle all_ids);
  /// One flag for all, or one for each.
  void set_drafts(const char* where, nb::handle drafts);

 private:
  std::int64_t count_of(const char* where, nb::handle counts, std::size_t i) const;
  void read_list(const char* where, nb::handle sequences, nb::handle counts, nb::handle all_ids);
};

/// A KVFormat, the name of one, or None: plain numbers.
KVFormat format_of(const char* where, const char* name, nb::handle format);
/// The inverse.
nb::object format_object(const KVFormat& format);

/// SequenceId, KVCacheStats and KVLayerGroup.
void register_kv_cache_types(nb::module_& module);

}  // namespace quire::python
