// The checks, sequence by sequence. Attention layer.
#include "attention/jagged_sequences.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "quire/error.h"
#include "runtime/fail.h"

namespace quire::attention {
namespace {

// Whose offsets and lengths are read, for texts.
struct Reader {
  const char *where, *name;

  template <class... Args>
  [[noreturn]] void fail(ErrorKind kind, fmt::format_string<Args...> text, Args&&... args) const {
    quire::fail(kind, where, "{}: {}", name, fmt::format(text, std::forward<Args>(args)...));
  }

  void check_integers(const char* what, const ConstTensorView& view) const {
    if (view.dtype() != DType::i32 && view.dtype() != DType::i64)
      fail(ErrorKind::type, "{} must be i32 or i64; got {}", what, dtype_name(view.dtype()));
  }

  std::vector<std::int64_t> read(const ConstTensorView& view) const {
    std::vector<std::int64_t> values(static_cast<std::size_t>(view.dim(0)));
    const std::int64_t step = view.stride(0);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::int64_t at = static_cast<std::int64_t>(i) * step;
      values[i] = view.dtype() == DType::i32 ? view.data_as<std::int32_t>()[at]
                                             : view.data_as<std::int64_t>()[at];
    }
    return values;
  }

  void check_offsets(const std::vector<std::int64_t>& offsets, std::int64_t total) const {
    if (offsets[0] < 0)
      fail(ErrorKind::value, "offsets must not be negative; sequence 0 begins at {}", offsets[0]);
    for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
      if (offsets[i + 1] < offsets[i]) {
        fail(ErrorKind::value, "offsets must not fall; sequence {} begins at {} and ends at {}", i,
             offsets[i], offsets[i + 1]);
      }
      if (offsets[i + 1] > total) {
        fail(ErrorKind::value, "sequence {} ends at {}, beyond the {} tokens of the values", i,
             offsets[i + 1], total);
      }
    }
    if (offsets[0] > total) {
      fail(ErrorKind::value, "offsets begin at {}, beyond the {} tokens of the values", offsets[0],
           total);
    }
  }

  std::vector<std::int64_t> read_lengths(const Jagged& jagged,
                                         const std::vector<std::int64_t>& offsets) const {
    const std::size_t count = offsets.size() - 1;
    std::vector<std::int64_t> slots(count);
    for (std::size_t i = 0; i < count; ++i) slots[i] = offsets[i + 1] - offsets[i];
    if (!jagged.lengths.has_value()) return slots;
    check_integers("lengths", *jagged.lengths);
    if (jagged.lengths->shape() != Shape{static_cast<std::int64_t>(count)}) {
      fail(ErrorKind::value, "lengths must be [{}], one per sequence; got {}", count,
           to_string(jagged.lengths->shape()));
    }
    std::vector<std::int64_t> lengths = read(*jagged.lengths);
    for (std::size_t i = 0; i < count; ++i) {
      if (lengths[i] < 0) {
        fail(ErrorKind::value, "lengths must not be negative; sequence {} has {}", i, lengths[i]);
      }
      if (lengths[i] > slots[i]) {
        fail(ErrorKind::value, "lengths must fit their slots; sequence {} has {} in a slot of {}",
             i, lengths[i], slots[i]);
      }
    }
    return lengths;
  }
};

}  // namespace

JaggedSequences read_sequences(const char* where, const char* name, const Jagged& jagged) {
  const Reader reader{where, name};
  const bool by_token = jagged.order == JaggedOrder::kTokens;
  if (jagged.values.rank() != 3) {
    reader.fail(ErrorKind::value, "values must be {}; got {}",
                by_token ? "[total, heads, dim]" : "[heads, total, dim]",
                to_string(jagged.values.shape()));
  }
  reader.check_integers("offsets", jagged.offsets);
  if (jagged.offsets.rank() != 1 || jagged.offsets.dim(0) == 0) {
    reader.fail(ErrorKind::value, "offsets must be [number of sequences + 1]; got {}",
                to_string(jagged.offsets.shape()));
  }
  JaggedSequences sequences;
  sequences.total = jagged.values.dim(by_token ? 0 : 1);
  sequences.heads = jagged.values.dim(by_token ? 1 : 0);
  sequences.dim = jagged.values.dim(2);
  std::vector<std::int64_t> offsets = reader.read(jagged.offsets);
  reader.check_offsets(offsets, sequences.total);
  sequences.rows.length = reader.read_lengths(jagged, offsets);
  offsets.pop_back();
  sequences.rows.begin = std::move(offsets);
  for (const std::int64_t length : sequences.rows.length)
    sequences.longest = std::max(sequences.longest, length);
  return sequences;
}

void check_lengths(const char* where, const JaggedSequences& q, const JaggedSequences& k,
                   const JaggedSequences& v) {
  if (q.count() != k.count() || k.count() != v.count()) {
    fail(ErrorKind::value, where,
         "query, key and value must have the same number of sequences; got {}, {} and {}",
         q.count(), k.count(), v.count());
  }
  for (std::size_t i = 0; i < k.rows.length.size(); ++i) {
    if (k.rows.length[i] == v.rows.length[i]) continue;
    fail(ErrorKind::value, where,
         "key and value must have the same lengths; sequence {} has {} and {}", i, k.rows.length[i],
         v.rows.length[i]);
  }
}

Shape jagged_shape(JaggedOrder order, std::int64_t total, std::int64_t heads, std::int64_t dim) {
  const bool by_token = order == JaggedOrder::kTokens;
  const std::int64_t first = by_token ? total : heads, second = by_token ? heads : total;
  return dim < 0 ? Shape{first, second} : Shape{first, second, dim};
}

}  // namespace quire::attention
