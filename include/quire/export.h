// The export macro, the only macro of the public headers. In a static build nothing is exported, so
// a Python module or a plugin that links Quire does not offer Quire's symbols to the rest of its
// process. Public; runtime layer.
#pragma once

#if defined(QUIRE_SHARED)
#define QUIRE_API __attribute__((visibility("default")))
#else
#define QUIRE_API
#endif
