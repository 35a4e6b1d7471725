// Releases the GIL while the library works, and acquires it. Python layer.
#pragma once
#include <nanobind/nanobind.h>
#include <unistd.h>

namespace quire::python {

/// Runs `take`, which waits for the GIL. Once the interpreter is ending it gives the GIL to no
/// daemon thread any more: Python then ends the thread by unwinding its stack, which the C++ frames
/// on it do not survive. The thread sleeps until the process is gone instead, as Python 3.14 lets
/// it.
template <class Take>
void take_gil(const Take& take) noexcept {
  try {
    take();
  } catch (...) {  // nothing but that unwinding comes here; it may not go on, so this never ends
    for (;;) pause();
  }
}

/// Without the GIL while it lives. No object of Python may be touched meanwhile.
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
