// Out-of-line members of Error, so that its vtable and type information exist once. Runtime layer.
#include "quire/error.h"

namespace quire {

Error::Error(ErrorKind kind, const std::string& text) : std::runtime_error(text), kind_(kind) {}
Error::~Error() = default;

}  // namespace quire
