// What the C++ library of Debian 12's emscripten (LLVM 13) lacks of C++20, as far as the layers of
// the page use it. Included before every file of the page's build and by nothing else. Play.
#pragma once
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <utility>

#if defined(_LIBCPP_VERSION) && _LIBCPP_VERSION < 15000
namespace std {  // NOLINT: the names are the standard's

template <class To, class From>
constexpr To bit_cast(const From& from) noexcept {
  return __builtin_bit_cast(To, from);
}

template <class Array>
unique_ptr<Array> make_unique_for_overwrite(size_t count) {
  return unique_ptr<Array>(new remove_extent_t<Array>[count]);
}

inline from_chars_result from_chars(const char* first, const char* last, double& value) {
  const string text(first, last);  // ends with a 0
  char* end = nullptr;
  const double read = strtod(text.c_str(), &end);
  if (end == text.c_str()) return {first, errc::invalid_argument};
  value = read;
  return {first + (end - text.c_str()), errc()};
}

namespace ranges {

template <class Range, class Value, class Projection>
constexpr auto find(Range&& range, const Value& value, Projection projection) {
  return std::find_if(std::begin(range), std::end(range),
                      [&](auto&& one) { return std::invoke(projection, one) == value; });
}
template <class Range, class Value>
constexpr auto find(Range&& range, const Value& value) {
  return std::find(std::begin(range), std::end(range), value);
}
template <class Range, class Value>
constexpr auto count(Range&& range, const Value& value) {
  return std::count(std::begin(range), std::end(range), value);
}
template <class First, class Second>
constexpr bool equal(First&& first, Second&& second) {
  return std::equal(std::begin(first), std::end(first), std::begin(second), std::end(second));
}
template <class Range, class Out>
constexpr void copy(Range&& range, Out out) {
  std::copy(std::begin(range), std::end(range), out);
}
template <class Range, class Predicate>
constexpr bool any_of(Range&& range, Predicate predicate) {
  return std::any_of(std::begin(range), std::end(range),
                     [&](auto&& one) { return std::invoke(predicate, one); });
}
template <class Range>
constexpr void sort(Range&& range) {
  std::sort(std::begin(range), std::end(range));
}
template <class Range>
constexpr bool is_sorted(Range&& range) {
  return std::is_sorted(std::begin(range), std::end(range));
}
template <class Range, class Value>
constexpr void fill(Range&& range, const Value& value) {
  std::fill(std::begin(range), std::end(range), value);
}
template <class Range, class Value, class Projection>
constexpr auto count(Range&& range, const Value& value, Projection projection) {
  return std::count_if(std::begin(range), std::end(range),
                       [&](auto&& one) { return std::invoke(projection, one) == value; });
}
template <class Range, class Projection>
constexpr auto adjacent_find(Range&& range, std::equal_to<> same, Projection projection) {
  return std::adjacent_find(std::begin(range), std::end(range), [&](auto&& a, auto&& b) {
    return std::invoke(same, std::invoke(projection, a), std::invoke(projection, b));
  });
}

}  // namespace ranges
}  // namespace std
#endif
