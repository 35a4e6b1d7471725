// Releases the GIL while the library works, and acquires it. Python layer.
#pragma once
#include <nanobind/nanobind.h>
#include <unistd.h>

namespace quire::python {

/// Runs `take`, which waits for the GIL. While the interpreter shuts down, Python ends
/// daemon threads that ask for the GIL by unwinding their stacks, which C++ frames do
/// not survive. Instead the thread sleeps until the process is gone, as in Python
/// 3.14.
template <class Take>
void take_gil(const Take& take) noexcept {
  try {
    take();
  } catch (...) {  // only that unwinding gets here; it must not continue, so this never returns
    for (;;) pause();
  }
}

/// Releases the GIL during its lifetime. No Python object may be touched meanwhile.
class ReleasedGil {
 public:
  ReleasedGil() : state_(PyEval_SaveThread()) {}
  ~ReleasedGil() {
    take_gil([&] { PyEval_RestoreThread(state_); });
  }
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace quire::python
