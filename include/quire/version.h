// The version of these headers, and of the library that the program runs with. Public; runtime
// layer.
#pragma once
#include "quire/export.h"

namespace quire {

// The version of the headers a program was compiled with. Before 1.0 a minor version may change the
// C++ interface; the C interface (quire/quire_c.h) stays.
inline constexpr int kVersionMajor = 0;
inline constexpr int kVersionMinor = 2;
inline constexpr int kVersionPatch = 0;

// The version of the library: "0.2.0". A string literal. A shared library may differ from the
// headers.
QUIRE_API const char* version() noexcept;

}  // namespace quire
