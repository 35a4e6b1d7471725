// Any bytes as a .npy file: refused with an Error, or a tensor that is written and read again with
// the same bytes.
#include <cstring>
#include <string>

#include "cli/npy.h"
#include "cli/npy_header.h"
#include "fuzz/targets.h"
#include "quire/error.h"

namespace quire::fuzz {

void npy_reader(Bytes bytes) {
  try {
    const Tensor tensor =
        parse_npy({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, "fuzz.npy");
    const auto size = tensor.numel() * dtype_size(tensor.dtype());
    check(size <= 2 * bytes.size(), "no more memory than the bytes are worth");  // u16 becomes i32
    std::string file = npy_header(tensor.dtype(), tensor.shape());
    if (size > 0) file.append(static_cast<const char*>(tensor.data()), size);
    const Tensor again = parse_npy(file, "again.npy");
    check(again.dtype() == tensor.dtype() && again.shape() == tensor.shape(),
          "what is written is read again");
    check(size == 0 || std::memcmp(again.data(), tensor.data(), size) == 0, "with the same bytes");
  } catch (const Error&) {
  }
}

}  // namespace quire::fuzz
