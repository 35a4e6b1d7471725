// The checks and their messages. Mods layer.
#include "mods/arguments.h"

#include "quire/error.h"
#include "runtime/fail.h"

namespace quire::mods {
namespace {

// A buffer that was given no name is called "buffer".
Buffer with_name(const Table& table, std::string_view name) {
  const Buffer& buffer = table.buffer();
  return buffer.name() == "buffer" ? buffer.renamed(std::string(name)) : buffer;
}

}  // namespace

void check_at_least(std::string_view function, std::string_view name, std::int64_t value,
                    std::int64_t least) {
  if (value >= least) return;
  fail(ErrorKind::value, function, "{} must be at least {}; got {}", name, least, value);
}

Buffer integer_table(std::string_view function, std::string_view name, const Table& table) {
  const Buffer buffer = with_name(table, name);
  if (is_integer(buffer.dtype())) return buffer;
  fail(ErrorKind::type, function, "{} must be integers; got {}", name, dtype_name(buffer.dtype()));
}

Buffer float_table(std::string_view function, std::string_view name, const Table& table) {
  const Buffer buffer = with_name(table, name);
  if (is_floating(buffer.dtype())) return buffer;
  fail(ErrorKind::type, function, "{} must be floats; got {}", name, dtype_name(buffer.dtype()));
}

void check_rank(std::string_view function, const Buffer& buffer, std::size_t least,
                std::size_t most, std::string_view shapes) {
  const std::size_t rank = buffer.shape().rank();
  if (rank >= least && rank <= most) return;
  fail(ErrorKind::value, function, "{} must have the shape {}; got {}", buffer.name(), shapes,
       to_string(buffer.shape()));
}

void check_has_data(std::string_view function, const Buffer& buffer) {
  if (buffer.has_data()) return;
  fail(ErrorKind::value, function, "{} is declared only and has no elements to read",
       buffer.name());
}

Buffer batch_table(std::string_view function, std::string_view name, const Table& table) {
  Buffer buffer = integer_table(function, name, table);
  check_rank(function, buffer, 1, 1, "[batch]");
  return buffer;
}

AnyExpr of_batch(const Buffer& table, const IntExpr& b) {
  return table[or_only(b, table, 0)].element();
}

IntExpr or_only(const IntExpr& index, const Buffer& buffer, std::size_t axis) {
  return buffer.shape()[axis] == 1 ? IntExpr(ExprBase::literal(std::int64_t{0})) : index;
}

}  // namespace quire::mods
