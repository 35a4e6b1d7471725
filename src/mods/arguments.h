// Checks on the arguments of mods, and indices into tables whose batch or head axis may have size
// 1. Mods layer.
#pragma once
#include <cstdint>
#include <string_view>

#include "quire/mods.h"

namespace quire::mods {

/// Throws Error unless `value` is at least `least`: "[function] name must be at least 1; got 0".
void check_at_least(std::string_view function, std::string_view name, std::int64_t value,
                    std::int64_t least);

/// The table's buffer, named `name` unless it has a name. Throws Error unless its elements are
/// integers, or floats.
Buffer integer_table(std::string_view function, std::string_view name, const Table& table);
Buffer float_table(std::string_view function, std::string_view name, const Table& table);

/// Throws Error unless the rank is within least..most; `shapes` describes what is expected.
void check_rank(std::string_view function, const Buffer& buffer, std::size_t least,
                std::size_t most, std::string_view shapes);

/// Throws Error if the buffer was declared without data that the mod has to read now.
void check_has_data(std::string_view function, const Buffer& buffer);

/// An integer per batch, [batch]; its element for batch b.
Buffer batch_table(std::string_view function, std::string_view name, const Table& table);
AnyExpr of_batch(const Buffer& table, const IntExpr& b);

/// The index of an axis: 0 if it has size 1, so that one entry serves all.
IntExpr or_only(const IntExpr& index, const Buffer& buffer, std::size_t axis);

}  // namespace quire::mods
