// The names and sizes of formats, and which formats have a kernel. Quant layer.
#include "quire/kv_format.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "kernels/attention_order.h"
#include "quant/row_coding.h"
#include "quire/error.h"
#include "runtime/fail.h"

namespace quire {
namespace {

struct Named {
  const char* name;
  KVFormat format;
};

constexpr std::array<Named, 9> kFormats{{
    {"plain", {}},
    {"int8", {.storage = KVStorage::kI8}},
    {"int8_channel", {.storage = KVStorage::kI8, .scale = ScaleAxis::kChannel}},
    {"u8", {.storage = KVStorage::kU8, .offset = CodeOffset::kZero}},
    {"int4",
     {.storage = KVStorage::kU4, .scale = ScaleAxis::kGroup, .offset = CodeOffset::kMinimum}},
    {"fp8_e4m3", {.storage = KVStorage::kFp8E4M3, .scale = ScaleAxis::kHead}},
    {"fp8_e5m2", {.storage = KVStorage::kFp8E5M2, .scale = ScaleAxis::kHead}},
    {"q8_0", {.storage = KVStorage::kI8, .scale = ScaleAxis::kGroup, .place = ScalePlace::kBlocks}},
    {"q4_0", {.storage = KVStorage::kU4, .scale = ScaleAxis::kGroup, .place = ScalePlace::kBlocks}},
}};

const Named* named(KVFormat format) {
  format.hadamard = false;
  const auto* found = std::ranges::find(kFormats, format, &Named::format);
  return found == kFormats.end() ? nullptr : found;
}

// Formats without a name: codes of one byte under scales per channel or per head.
bool exists(const KVFormat& format) {
  if (named(format) != nullptr) return true;
  return format.offset == CodeOffset::kNone && format.place == ScalePlace::kBeside &&
         (format.scale == ScaleAxis::kChannel || format.scale == ScaleAxis::kHead) &&
         format.storage != KVStorage::kU4 && format.storage != KVStorage::kU8;
}

bool has_groups(const KVFormat& format) {
  return format.scale == ScaleAxis::kGroup || format.storage == KVStorage::kU4;
}

void check_fits(const KVFormat& format, std::int64_t head_dim) {
  using kernels::kCodeGroup;
  if (!exists(format))
    fail(ErrorKind::value, "KVFormat", "there is no format of {}", format.name());
  if (format.is_plain() && format.hadamard)
    fail(ErrorKind::value, "KVFormat", "hadamard is for codes; numbers as they are need none");
  if (head_dim < 1 || head_dim > kernels::kMostHeadDim)
    fail(ErrorKind::value, "KVFormat", "the head dim must be in 1..{}; got {}",
         kernels::kMostHeadDim, head_dim);
  if (has_groups(format) && head_dim % kCodeGroup != 0) {
    const std::int64_t below = head_dim / kCodeGroup * kCodeGroup;
    fail(ErrorKind::value, "KVFormat",
         "{} codes groups of {} channels, and a head dim of {} is no multiple of that ({}{} would "
         "fit); int8, int8_channel, u8, fp8_e4m3 and fp8_e5m2 fit any",
         format.name(), kCodeGroup, head_dim, below > 0 ? fmt::format("{} or ", below) : "",
         below + kCodeGroup);
  }
  if (format.hadamard && head_dim % 2 != 0)
    fail(ErrorKind::value, "KVFormat",
         "hadamard rotates blocks of a power of two; a head dim of {} is odd", head_dim);
}

const char* storage_name(KVStorage storage) {
  constexpr const char* kNames[] = {"plain", "i8", "u8", "u4", "fp8_e4m3", "fp8_e5m2"};
  return kNames[static_cast<std::size_t>(storage)];
}

}  // namespace

KVFormat KVFormat::of(std::string_view name, bool hadamard) {
  constexpr std::string_view kRotated = "+hadamard";
  if (name.ends_with(kRotated)) {
    hadamard = true;
    name.remove_suffix(kRotated.size());
  }
  const auto* found = std::ranges::find(kFormats, name, &Named::name);
  if (found == kFormats.end()) {
    fail(ErrorKind::value, "KVFormat", "there is no format {}; there are {}", name,
         fmt::join(names(), ", "));
  }
  KVFormat format = found->format;
  format.hadamard = hadamard;
  return format;
}

const std::vector<std::string>& KVFormat::names() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> list;
    for (const Named& one : kFormats)
      if (!one.format.is_plain()) list.emplace_back(one.name);
    return list;
  }();
  return all;
}

std::string KVFormat::name() const {
  const char* const rotated = hadamard ? "+hadamard" : "";
  if (const Named* found = named(*this)) return fmt::format("{}{}", found->name, rotated);
  constexpr const char* kAxes[] = {"token", "group", "channel", "head"};
  constexpr const char* kOffsets[] = {"", " with a zero point", " with a minimum"};
  return fmt::format("{} codes with a scale per {}{}{}{}", storage_name(storage),
                     kAxes[static_cast<std::size_t>(scale)],
                     kOffsets[static_cast<std::size_t>(offset)],
                     place == ScalePlace::kBlocks ? " in blocks" : "", rotated);
}

std::int64_t KVFormat::code_bytes(std::int64_t head_dim) const {
  check_fits(*this, head_dim);
  return kernels::code_bytes(quant::row_coding(*this, head_dim), static_cast<int>(head_dim));
}

std::int64_t KVFormat::scale_count(std::int64_t head_dim) const {
  check_fits(*this, head_dim);
  if (!has_scales()) return 0;
  const std::int64_t each = offset == CodeOffset::kNone ? 1 : 2;
  if (scale == ScaleAxis::kGroup) return head_dim / kernels::kCodeGroup * each;
  return scale == ScaleAxis::kChannel ? head_dim : each;
}

std::int64_t KVFormat::head_dim(std::int64_t code_bytes) const {
  using kernels::kCodeGroup;
  if (!has_groups(*this)) return code_bytes;
  const std::int64_t codes = storage == KVStorage::kU4 ? kCodeGroup / 2 : kCodeGroup;
  const std::int64_t block = codes + (place == ScalePlace::kBlocks ? 2 : 0);
  if (code_bytes % block != 0) {
    fail(ErrorKind::value, "KVFormat", "a row of {} is {} bytes for each {} channels; got {} bytes",
         name(), block, kCodeGroup, code_bytes);
  }
  return code_bytes / block * kCodeGroup;
}

std::int64_t KVFormat::rotation(std::int64_t head_dim) const {
  return hadamard ? head_dim & -head_dim : 1;
}

namespace quant {

kernels::RowCoding row_coding(const KVFormat& format, std::int64_t head_dim) {
  using kernels::CodeType;
  constexpr CodeType kTypes[] = {CodeType::kNone, CodeType::kI8,   CodeType::kU8,
                                 CodeType::kU4,   CodeType::kE4M3, CodeType::kE5M2};
  if (format.is_plain()) return {};
  kernels::RowCoding coding{.codes = kTypes[static_cast<std::size_t>(format.storage)],
                            .shift = static_cast<kernels::CodeShift>(format.offset),
                            .f16_scales = format.scale == ScaleAxis::kGroup,
                            .in_blocks = format.place == ScalePlace::kBlocks,
                            .rotation = static_cast<int>(format.rotation(head_dim))};
  if (format.scale == ScaleAxis::kGroup) coding.group = kernels::kCodeGroup;
  if (format.scale == ScaleAxis::kChannel) coding.group = 1;
  return coding;
}

}  // namespace quant
}  // namespace quire
