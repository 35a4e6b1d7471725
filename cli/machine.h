// Facts about this machine that `info`, `bench` and `demo` print. Command line layer.
#pragma once
#include <string>

#include "quire/executor.h"

namespace quire::cli {

/// Measured on all threads of an executor, with the current ISA.
struct Peaks {
  double f32 = 0;   // multiplications and additions per second, in registers
  double bf16 = 0;  // the same with pairs of bf16; 0 if the ISA has none
  double read = 0;  // bytes per second from memory
};

/// Takes a fifth of a second and, meanwhile, up to 256 MiB.
Peaks measure_peaks(Executor& executor);

/// "f32 210 GFLOP/s, bf16 420 GFLOP/s, memory 21 GB/s".
std::string to_string(const Peaks& peaks);

/// The lines that `quire info` prints.
std::string machine_text(Executor& executor);

}  // namespace quire::cli
