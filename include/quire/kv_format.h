// KVFormat: how keys or values are stored: as numbers of a dtype, or as codes with scales.
// Defines a format, its name and its row sizes; quantize.h makes and reads codes. Public; quant
// layer.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "quire/dtype.h"
#include "quire/export.h"
#include "quire/shape.h"

namespace quire {

enum class KVStorage : std::uint8_t {
  kPlain,    // numbers of the tensor's dtype; no scales
  kI8,       // -127..127
  kU8,       // 0..255
  kU4,       // 0..15; 32 channels take 16 bytes, byte i holding channel i (low) and 16 + i (high)
  kFp8E4M3,  // 1 byte: at most 448, no infinity
  kFp8E5M2,  // 1 byte: at most 57,344; the upper half of an f16
};

/// Which numbers share a scale.
enum class ScaleAxis : std::uint8_t {
  kToken,    // the channels of one token and head
  kGroup,    // 32 channels of one token and head
  kChannel,  // a channel of a head, in all tokens; given, or found by quantize
  kHead,     // a head in all tokens, or the whole tensor; given, or found by quantize
};

/// What accompanies each scale.
enum class CodeOffset : std::uint8_t {
  kNone,     // number = code * scale (4 bits: (code - 8) * scale)
  kZero,     // a zero point: (code - zero) * scale
  kMinimum,  // a minimum: code * scale + minimum
};

enum class ScalePlace : std::uint8_t {
  kBeside,  // in a separate tensor
  kBlocks,  // f16, before the codes of each group, as in ggml
};

/// Made by `of` or field by field; combinations that no kernel reads are rejected by name when they
/// are used. Numbers are decoded in f32, rounding each operation.
struct QUIRE_API KVFormat {
  KVStorage storage = KVStorage::kPlain;
  ScaleAxis scale = ScaleAxis::kToken;
  CodeOffset offset = CodeOffset::kNone;
  ScalePlace place = ScalePlace::kBeside;
  /// Rows are rotated by a Hadamard matrix, in blocks of the largest power of two that divides the
  /// head dim, before they are coded. Attention rotates queries as well, and rotates outputs back.
  bool hadamard = false;

  /// "int8", "int8_channel", "u8", "int4", "fp8_e4m3", "fp8_e5m2", "q8_0", "q4_0", or "plain". For
  /// any other throws Error, which lists these names.
  static KVFormat of(std::string_view name, bool hadamard = false);
  static const std::vector<std::string>& names();
  /// A name as above, "int4+hadamard" if rotated; for a format without a name, its parts.
  std::string name() const;

  bool is_plain() const { return storage == KVStorage::kPlain; }
  /// Dtype of the tensor of codes: i8 or u8.
  DType code_dtype() const {
    return storage == KVStorage::kI8 && place == ScalePlace::kBeside ? DType::i8 : DType::u8;
  }
  /// f32, or f16 for groups. Formats in blocks have no tensor of scales.
  DType scale_dtype() const { return scale == ScaleAxis::kGroup ? DType::f16 : DType::f32; }
  bool has_scales() const { return !is_plain() && place == ScalePlace::kBeside; }

  /// Bytes of the codes of a row. Throws Error if the format does not exist or does not fit.
  std::int64_t code_bytes(std::int64_t head_dim) const;
  /// Scales, zero points and minima of a row; 0 in blocks.
  std::int64_t scale_count(std::int64_t head_dim) const;
  /// The inverse: the head dim of rows of this many code bytes.
  std::int64_t head_dim(std::int64_t code_bytes) const;
  /// Size of the blocks that the rotation mixes; 1: none.
  std::int64_t rotation(std::int64_t head_dim) const;

  friend bool operator==(const KVFormat&, const KVFormat&) = default;
};

}  // namespace quire
