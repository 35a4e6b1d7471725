// Reads offsets and lengths and checks them, sequence by sequence. Layout layer.
#include "layout/jagged_rows.h"

#include <fmt/format.h>

#include <utility>

#include "quire/error.h"
#include "runtime/fail.h"
#include "tensor/index_view.h"

namespace quire::layout {
namespace {

// Whose offsets and lengths are read, for error messages.
struct Reader {
  const char *where, *name;

  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> text, Args&&... args) const {
    quire::fail(ErrorKind::value, where, "{}: {}", name,
                fmt::format(text, std::forward<Args>(args)...));
  }

  std::vector<std::int64_t> read(const ConstTensorView& view) const {
    const IndexView numbers(view);
    std::vector<std::int64_t> values(view.dim(0));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = numbers[static_cast<std::int64_t>(i) * view.stride(0)];
    return values;
  }

  void check_offsets(const std::vector<std::int64_t>& offsets, std::int64_t total) const {
    if (offsets[0] < 0) fail("offsets must not be negative; sequence 0 begins at {}", offsets[0]);
    for (std::size_t i = 0; i + 1 < offsets.size(); ++i) {
      if (offsets[i + 1] < offsets[i]) {
        fail("offsets must not fall; sequence {} begins at {} and ends at {}", i, offsets[i],
             offsets[i + 1]);
      }
      if (offsets[i + 1] > total) {
        fail("sequence {} ends at {}, beyond the {} tokens of the values", i, offsets[i + 1],
             total);
      }
    }
    if (offsets[0] > total)
      fail("offsets begin at {}, beyond the {} tokens of the values", offsets[0], total);
  }

  void check_lengths(const std::vector<std::int64_t>& lengths,
                     const std::vector<std::int64_t>& slots) const {
    for (std::size_t i = 0; i < slots.size(); ++i) {
      if (lengths[i] < 0) fail("lengths must not be negative; sequence {} has {}", i, lengths[i]);
      if (lengths[i] > slots[i]) {
        fail("lengths must fit their slots; sequence {} has {} in a slot of {}", i, lengths[i],
             slots[i]);
      }
    }
  }
};

}  // namespace

JaggedRows read_rows(const char* where, const char* name, const ConstTensorView& offsets,
                     const std::optional<ConstTensorView>& lengths, std::int64_t total) {
  const Reader reader{where, name};
  check_indices(where, fmt::format("{}: offsets", name), offsets);
  if (offsets.rank() != 1 || offsets.dim(0) == 0)
    reader.fail("offsets must be [number of sequences + 1]; got {}", to_string(offsets.shape()));
  JaggedRows rows{.begin = reader.read(offsets), .length = {}};
  reader.check_offsets(rows.begin, total);
  for (std::size_t i = 0; i + 1 < rows.begin.size(); ++i)
    rows.length.push_back(rows.begin[i + 1] - rows.begin[i]);
  rows.begin.pop_back();
  if (!lengths.has_value()) return rows;
  check_indices(where, fmt::format("{}: lengths", name), *lengths);
  if (lengths->shape() != Shape{std::ssize(rows.begin)}) {
    reader.fail("lengths must be [{}], one per sequence; got {}", rows.begin.size(),
                to_string(lengths->shape()));
  }
  std::vector<std::int64_t> given = reader.read(*lengths);
  reader.check_lengths(given, rows.length);
  rows.length = std::move(given);
  return rows;
}

}  // namespace quire::layout
