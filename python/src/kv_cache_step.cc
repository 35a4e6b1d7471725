// Reads sequences, counts and ids of a step. Python layer.
#include "kv_cache_step.h"

#include <fmt/format.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "arguments.h"
#include "quire/error.h"

namespace quire::python {
namespace {

nb::list list_of(const char* where, const char* name, const char* wanted, nb::handle value) {
  nb::object list = nb::steal(PySequence_List(value.ptr()));
  if (!list.is_valid()) {
    PyErr_Clear();
    refuse_argument(where, name, wanted, value);
  }
  return nb::borrow<nb::list>(list);
}

}  // namespace

Ids ids_of(const char* where, nb::handle ids) {
  const View view = view_of(ids);
  // NumPy turns an empty list into an array of floats.
  if (view.tensor.rank() == 1 && view.tensor.dim(0) == 0) return {};
  if (view.tensor.rank() != 1 || !is_integer(view.tensor.dtype())) {
    throw Error(ErrorKind::type,
                fmt::format("[{}] ids must be integers in one row; got {} of {}", where,
                            dtype_name(view.tensor.dtype()), to_string(view.tensor.shape())));
  }
  Ids numbers(view.tensor.dim(0));
  for (std::size_t i = 0; i < numbers.size(); ++i)
    numbers[i] = view.tensor.load_int({static_cast<std::int64_t>(i)});
  return numbers;
}

Step::Step(const char* where, nb::handle sequences, nb::handle counts, nb::handle all_ids) {
  if (nb::isinstance<SequenceId>(sequences)) {
    if (!all_ids.is_none()) ids.push_back(ids_of(where, all_ids));
    tokens.push_back({nb::cast<SequenceId>(sequences), count_of(where, counts, 0)});
  } else {
    read_list(where, sequences, counts, all_ids);
  }
  for (std::size_t i = 0; i < ids.size(); ++i) tokens[i].ids = ids[i];
}

std::int64_t Step::count_of(const char* where, nb::handle counts, std::size_t i) const {
  if (!counts.is_none()) return whole_number(where, "counts", counts);
  return i < ids.size() && !ids[i].empty() ? std::ssize(ids[i]) : 1;
}

void Step::read_list(const char* where, nb::handle sequences, nb::handle counts,
                     nb::handle all_ids) {
  const nb::list list = list_of(where, "sequences", "a SequenceId or a list of them", sequences);
  for (const nb::handle one : list)
    if (!nb::isinstance<SequenceId>(one))
      refuse_argument(where, "each of sequences", "a SequenceId", one);
  const auto check = [&](const char* name, std::size_t n) {
    if (n == list.size()) return;
    throw Error(ErrorKind::value, fmt::format("[{}] {} must be as many as sequences; got {} and "
                                              "{}",
                                              where, name, n, list.size()));
  };
  if (!all_ids.is_none()) {
    for (const nb::handle one :
         list_of(where, "ids", "a list with ids for each of sequences", all_ids))
      ids.push_back(one.is_none() ? Ids{} : ids_of(where, one));
    check("ids", ids.size());
  }
  std::optional<nb::list> many;
  if (!counts.is_none() && (has_length(counts) || PyIndex_Check(counts.ptr()) == 0)) {
    many = list_of(where, "counts", "an int or a list of ints", counts);
    check("counts", many->size());
  }
  for (std::size_t i = 0; i < list.size(); ++i)
    tokens.push_back({nb::cast<SequenceId>(list[i]),
                      many ? whole_number(where, "each of counts", nb::handle((*many)[i]))
                           : count_of(where, counts, i)});
}

void Step::set_drafts(const char* where, nb::handle drafts) {
  if (nb::isinstance<nb::bool_>(drafts)) {
    for (NewTokens& one : tokens) one.draft = nb::cast<bool>(drafts);
    return;
  }
  std::vector<bool> each;
  if (!nb::try_cast(drafts, each) || each.size() != tokens.size())
    refuse_argument(where, "draft", "a bool, or one for each of sequences", drafts);
  for (std::size_t i = 0; i < each.size(); ++i) tokens[i].draft = each[i];
}

}  // namespace quire::python
