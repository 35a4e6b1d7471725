// Saving sequences of a KVCache and loading them: bytes, files and functions. Python layer.
#pragma once
#include <nanobind/nanobind.h>

#include "quire/kv_cache.h"

namespace quire::python {

/// save, load, save_to, load_from, save_all and load_all.
void define_kv_cache_files(nanobind::class_<KVCache>& type);

}  // namespace quire::python
