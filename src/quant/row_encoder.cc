// Encodes rows a few at a time, so that they stay in the nearest cache. Quant layer.
#include "quant/row_encoder.h"

#include <algorithm>

#include "kernels/attention_order.h"
#include "kernels/coding/functions.h"
#include "kernels/coding/rotate.h"
#include "kernels/dispatch.h"

namespace quire::quant {
namespace {

// Numbers that are read at once: 8 rows of 128.
constexpr int kSomeNumbers = kernels::kMostHeadDim;

}  // namespace

RowEncoder::RowEncoder(const KVFormat& format, std::int64_t head_dim)
    : table_(kernels::current_table()),
      coding_(row_coding(format, head_dim)),
      given_(has_given_scales(format)) {}

void RowEncoder::read(const kernels::RowsView& row, float* to) const noexcept {
  kernels::RowsView one = row;
  one.rows = 1;
  read_some(one, 0, to);
}

int RowEncoder::read_some(const kernels::RowsView& rows, int first, float* to) const noexcept {
  const auto size = static_cast<std::ptrdiff_t>(dtype_size(rows.dtype));
  kernels::RowsView some = rows;
  some.data = static_cast<const char*>(rows.data) + first * rows.row_step * size;
  some.rows = std::min(rows.rows - first, kSomeNumbers / rows.columns);
  table_.forward_f32->copy_rows({some, to, rows.columns, rows.columns});
  for (int row = 0; row < some.rows; ++row)
    kernels::rotate(to + row * rows.columns, rows.columns, coding_.rotation);
  return some.rows;
}

int RowEncoder::encode(const kernels::RowsView& rows, const CodePlace& to) const noexcept {
  float numbers[kSomeNumbers];
  int without = rows.rows;
  for (int first = 0; first < rows.rows;) {
    const int n = read_some(rows, first, numbers);
    const int fits =
        table_.coding->encode({.coding = coding_,
                               .from = numbers,
                               .from_step = rows.columns,
                               .rows = n,
                               .columns = rows.columns,
                               .given = given_,
                               .codes = reinterpret_cast<char*>(to.codes + first * to.code_step),
                               .code_step = to.code_step,
                               .scales = reinterpret_cast<char*>(to.scales + first * to.scale_step),
                               .scale_step = to.scale_step});
    if (fits < n && without == rows.rows) without = first + fits;
    first += n;
  }
  return without;
}

int RowEncoder::first_without_code(const kernels::RowsView& rows) const noexcept {
  // Room for one row: codes with scales in blocks, and separate scales. Given scales do not matter
  // here.
  std::byte codes[kernels::kMostHeadDim + kernels::kMostHeadDim / kernels::kCodeGroup * 2];
  float scales[kernels::kMostHeadDim] = {};
  return encode(rows, {.codes = codes, .scales = reinterpret_cast<std::byte*>(scales)});
}

}  // namespace quire::quant
