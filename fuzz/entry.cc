// libFuzzer's entry to one target: compiled once per target, with QUIRE_FUZZ_TARGET as its name.
#include <cstddef>

#include "fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  quire::fuzz::QUIRE_FUZZ_TARGET({data, size});
  return 0;
}
