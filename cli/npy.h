// Reads and writes tensors as NumPy's .npy files. Command line layer.
#pragma once
#include <iosfwd>
#include <span>
#include <string>
#include <string_view>

#include "quire/tensor.h"

namespace quire {

/// The tensor in the bytes of a .npy file, always row-major. f32, f64, f16, bf16 (as ml_dtypes
/// writes it, V2), bool, signed integers and u8 keep their type; u16 becomes i32, u32 and u64
/// become i64. Either byte order. Allocates no more than the bytes contain. Throws Error, with
/// `name` in its text, for anything that is not exactly one array.
Tensor parse_npy(std::span<const char> bytes, std::string_view name);

/// The same from a file, a pipe or a device, of which no more is read than the header promises (and
/// one byte to see whether it ends there). Throws Error(runtime), with the system's reason, if it
/// cannot be read.
Tensor read_npy(const std::string& path);

/// Writes any view as a row-major array of version 1. The stream tells whether it was written.
void write_npy(std::ostream& stream, const ConstTensorView& view);

}  // namespace quire
