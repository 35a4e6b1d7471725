// The C interface: version, ISA, threads. C API layer.
#include "c_api/status.h"
#include "quire/executor.h"
#include "quire/isa.h"
#include "quire/version.h"

using namespace quire;

const char* quire_version(void) { return version(); }

const char* quire_isa(void) {
  const char* name = nullptr;
  c_api::guarded([&] { name = isa_name(current_isa()); });
  return name;
}

quire_status quire_set_num_threads(int32_t threads) {
  return c_api::guarded([&] { set_num_threads(threads); });
}

quire_status quire_get_num_threads(int32_t* threads) {
  return c_api::guarded([&] {
    c_api::require(threads, "quire_get_num_threads", "threads");
    *threads = get_num_threads();
  });
}
