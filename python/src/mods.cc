// The classes ScoreMod and MaskMod. Python layer.
#include "mods.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arguments.h"
#include "exprs.h"
#include "quire/draw.h"
#include "quire/error.h"
#include "quire/paged_attention.h"
#include "register.h"
#include "view.h"

namespace quire::python {
namespace {

constexpr const char* kModSignature =
    "def __init__(mod: object, buffers: object | None = None) -> None";

void refuse_buffers(nb::handle buffers, const char* what) {
  if (buffers.is_none()) return;
  throw nb::type_error((std::string("[") + what + "] buffers belong to a text").c_str());
}

// Calls a mod with expressions; quire/mod_calls.py explains what functions get wrong, as NumPy's
// own message about expressions as indices does not help.
template <class... Arguments>
nb::object call(nb::handle function, const char* what, const Arguments&... arguments) {
  try {
    return nb::module_::import_("quire.mod_calls")
        .attr("call_mod")(what, function, nb::make_tuple(PyExpr{arguments}...));
  } catch (nb::python_error& error) {
    const bool is_numpy =
        error.matches(PyExc_IndexError) &&
        std::string_view(error.what()).find("only integers, slices") != std::string_view::npos;
    if (!is_numpy) throw;
    nb::raise_from(
        error, PyExc_TypeError,
        "[%s] an array that a mod reads by its arguments has to be a buffer; write table "
        "= quire.Buffer(array) before it",
        what);
  }
}

// The result of a traced function.
Formula formula_of(const nb::object& result, const char* what) {
  return Formula(operand(result, what));
}

// A bool where a score is expected is usually a mask in the wrong place.
void warn_if_condition(const Formula& score) {
  if (score.type() == ValueType::kBool)
    nb::module_::import_("quire.mod_calls").attr("warn_if_condition")();
}

Formula trace_score(nb::handle function) {
  const detail::ModArguments a = detail::mod_arguments();
  Formula score =
      formula_of(call(function, "ScoreMod", a.score, a.b, a.h, a.q_idx, a.kv_idx), "ScoreMod");
  warn_if_condition(score);
  return score;
}

Formula trace_mask(nb::handle function) {
  const detail::ModArguments a = detail::mod_arguments();
  return formula_of(call(function, "MaskMod", a.b, a.h, a.q_idx, a.kv_idx), "MaskMod");
}

template <class Mod>
Mod mod_of(nb::handle mod, nb::handle buffers, const char* what, Formula (*trace)(nb::handle)) {
  if (nb::isinstance<Mod>(mod)) {
    refuse_buffers(buffers, what);
    return nb::cast<const Mod&>(mod);
  }
  if (nb::isinstance<nb::str>(mod))
    return Mod::parse(nb::cast<std::string>(mod), named_buffers_of(buffers));
  if (nb::isinstance<PyExpr>(mod)) {
    refuse_buffers(buffers, what);
    return Mod(Formula(nb::cast<const PyExpr&>(mod).base));
  }
  const bool is_other_kind = nb::isinstance<ScoreMod>(mod) || nb::isinstance<MaskMod>(mod);
  if (!is_other_kind && PyCallable_Check(mod.ptr()) != 0) {
    refuse_buffers(buffers, what);
    return Mod(trace(mod));
  }
  const char* const instead =
      nb::isinstance<MaskMod>(mod)
          ? ": give it to create_block_mask, and the block mask to flex_attention"
      : nb::isinstance<ScoreMod>(mod) ? ": give it to flex_attention as score_mod"
                                      : "";
  throw nb::type_error((std::string("[") + what + "] a " + what +
                        ", a text or a function is needed; got " + name_of_type(mod) + instead)
                           .c_str());
}

// The same formula over other memory; names stay.
template <class Mod>
Mod bind(const Mod& mod, const nb::list& views, nb::handle wants_gradient) {
  const Formula& formula = mod.formula();
  std::vector<Buffer> old = formula.buffers();
  std::vector<bool> wants(old.size());
  if (!wants_gradient.is_none()) wants = nb::cast<std::vector<bool>>(wants_gradient);
  if (views.size() != old.size() || wants.size() != old.size()) {
    throw Error(ErrorKind::value, "[bind] the mod reads " + std::to_string(old.size()) +
                                      " buffers; got " + std::to_string(views.size()));
  }
  for (std::size_t i = 0; i < old.size(); ++i) {
    const nb::handle view = views[i];
    BufferOptions options{
        .name = old[i].name(), .wants_gradient = wants[i], .is_page_table = old[i].is_page_table()};
    old[i] = nb::isinstance<View>(view) ? buffer_of(nb::cast<const View&>(view), std::move(options))
                                        : buffer_of(view_of(view), std::move(options));
  }
  return Mod(formula.with_buffers(std::move(old)));
}

nb::object combine(nb::handle a, nb::handle b, MaskMod (*join)(const MaskMod&, const MaskMod&)) {
  const auto fits = [](nb::handle mod) {
    return !nb::isinstance<ScoreMod>(mod) && PyCallable_Check(mod.ptr()) != 0;
  };
  if (!fits(a) || !fits(b)) return nb::borrow(Py_NotImplemented);
  return nb::cast(join(mask_mod_of(a), mask_mod_of(b)));
}

MaskMod both(const MaskMod& a, const MaskMod& b) { return a & b; }
MaskMod either(const MaskMod& a, const MaskMod& b) { return a | b; }

// & and | with another mask or a function on either side.
void define_logic(nb::class_<MaskMod>& class_) {
  class_
      .def(
          "__and__", [](nb::handle a, nb::handle b) { return combine(a, b, &both); },
          nb::is_operator())
      .def(
          "__rand__", [](nb::handle a, nb::handle b) { return combine(b, a, &both); },
          nb::is_operator())
      .def(
          "__or__", [](nb::handle a, nb::handle b) { return combine(a, b, &either); },
          nb::is_operator())
      .def(
          "__ror__", [](nb::handle a, nb::handle b) { return combine(b, a, &either); },
          nb::is_operator())
      .def("__invert__", [](const MaskMod& a) { return ~a; });
}

void define_calls(nb::class_<ScoreMod>& score, nb::class_<MaskMod>& mask) {
  score.def(
      "__call__",
      [](const ScoreMod& mod, nb::handle value, nb::handle b, nb::handle h, nb::handle q_idx,
         nb::handle kv_idx) {
        const char* const at = "ScoreMod";
        return PyExpr{
            detail::apply(mod.formula(), {operand(value, at), operand(b, at), operand(h, at),
                                          operand(q_idx, at), operand(kv_idx, at)})};
      },
      nb::arg("score"), nb::arg("b"), nb::arg("h"), nb::arg("q_idx"), nb::arg("kv_idx"),
      "As part of another mod: its value at these arguments, an Expr.");
  mask.def(
      "__call__",
      [](const MaskMod& mod, nb::handle b, nb::handle h, nb::handle q_idx, nb::handle kv_idx) {
        const char* const at = "MaskMod";
        return PyExpr{
            detail::apply(mod.formula(), {ExprBase::literal(0.0), operand(b, at), operand(h, at),
                                          operand(q_idx, at), operand(kv_idx, at)})};
      },
      nb::arg("b"), nb::arg("h"), nb::arg("q_idx"), nb::arg("kv_idx"),
      "As part of another mod: its value at these arguments, an Expr.");
}

template <class Mod>
std::vector<std::string> buffer_names(const Mod& mod) {
  std::vector<std::string> names;
  for (const auto& [name, buffer] : mod.formula().named_buffers()) names.push_back(name);
  return names;
}

// The index among `known` of each buffer that the mod reads.
template <class Mod>
std::vector<std::size_t> places_of_buffers(const Mod& mod, const nb::list& known) {
  std::vector<std::size_t> places;
  for (const Buffer& buffer : mod.formula().buffers()) {
    std::size_t place = 0;
    while (place < known.size() && !nb::cast<const Buffer&>(known[place]).is_same(buffer)) ++place;
    if (place == known.size())
      throw Error(ErrorKind::value,
                  "[places_of_buffers] the mod reads '" + buffer.name() + "', which is not there");
    places.push_back(place);
  }
  return places;
}

// A mod has no lengths of its own: it is drawn at the first of these that its buffers allow.
constexpr std::int64_t kPictureLengths[] = {64, 32, 16, 8};

// What a notebook shows; the text if the buffers are too small for a picture.
template <class Mod>
std::optional<std::string> picture_of(const Mod& mod) {
  for (const std::int64_t length : kPictureLengths) {
    try {
      return draw_svg(mod, length, length);
    } catch (const Error&) {
      continue;
    }
  }
  return std::nullopt;
}

template <class Mod, class Class>
void define_mod(Class& class_, const char* name) {
  class_.def_prop_ro("text", &Mod::to_string, "The formula; parses back to an equal one.")
      .def_prop_ro("buffer_names", &buffer_names<Mod>,
                   "The names of the buffers it reads, in the order of first use.")
      .def_prop_ro(
          "buffers", [](const Mod& mod) { return to_dict(mod.formula().named_buffers()); },
          "The buffers it reads by name, as read-only NumPy arrays over their memory.")
      .def("places_of_buffers", &places_of_buffers<Mod>, nb::arg("known"),
           "Where each of the buffers it reads stands in a list of Buffers, in the order of "
           "buffer_names.")
      .def_static("bind", &bind<Mod>, nb::arg("mod"), nb::arg("views"),
                  nb::arg("wants_gradient").none() = nb::none(),
                  "The same formula over other arrays, in the order of buffer_names, of the same "
                  "dtypes and ranks. Parses nothing. `wants_gradient`: of which the backward pass "
                  "gives the gradient; of none if None.")
      .def("__str__", &Mod::to_string)
      .def("_repr_svg_", &picture_of<Mod>, "What a notebook shows.")
      .def("__repr__",
           [name](const Mod& mod) {
             return std::string("quire.") + name + "(" +
                    nb::cast<std::string>(nb::repr(nb::cast(mod.to_string()))) + ")";
           })
      .def(
          "__eq__",
          [](const Mod& a, nb::handle b) -> nb::object {
            if (!nb::isinstance<Mod>(b)) return nb::borrow(Py_NotImplemented);
            return nb::cast(a.formula() == nb::cast<const Mod&>(b).formula());
          },
          nb::is_operator(), "Same structure, same constants, same buffers.")
      .def("__hash__", [](const Mod& mod) { return nb::hash(nb::cast(mod.to_string())); })
      .def("__reduce__",
           [](nb::handle self) {
             const Mod& mod = nb::cast<const Mod&>(self);
             const NamedBuffers named = mod.formula().named_buffers();
             nb::object buffers = nb::none();
             if (!named.empty()) buffers = to_dict(named);
             const bool is_marked = std::any_of(named.begin(), named.end(), [](const auto& entry) {
               return entry.second.is_page_table();
             });
             if (!is_marked)
               return nb::make_tuple(self.type(), nb::make_tuple(mod.to_string(), buffers));
             return nb::make_tuple(nb::module_::import_("quire.pickling").attr("restore_converted"),
                                   nb::make_tuple(self.type(), mod.to_string(), buffers));
           })
      .def_static(
          "mark_page_table", [](const Mod& mod) { return mark_page_table(mod); }, nb::arg("mod"),
          "The mod with its page table marked, if it is one that a PagedAttention converted: "
          "flex_attention then reads the pages of its sequences only.");
}

}  // namespace

NamedBuffers named_buffers_of(nb::handle buffers) {
  NamedBuffers named;
  if (buffers.is_none()) return named;
  if (!nb::isinstance<nb::dict>(buffers))
    refuse_argument("buffers", "the buffers of a mod", "a dict of arrays by name", buffers);
  for (const auto& [key, value] : nb::borrow<nb::dict>(buffers)) {
    std::string name = plain_text("buffers", "the name of a buffer", key);
    Buffer buffer = nb::isinstance<Buffer>(value) ? nb::cast<const Buffer&>(value).renamed(name)
                                                  : buffer_of(view_of(value), {.name = name});
    named.emplace_back(std::move(name), std::move(buffer));
  }
  return named;
}

nb::dict to_dict(const NamedBuffers& buffers) {
  nb::dict dict;
  for (const auto& [name, buffer] : buffers) dict[name.c_str()] = to_numpy(view_of(buffer));
  return dict;
}

ScoreMod score_mod_of(nb::handle mod, nb::handle buffers) {
  if (nb::isinstance<nb::str>(mod)) {
    const Formula score = Formula::parse(nb::cast<std::string>(mod), named_buffers_of(buffers));
    warn_if_condition(score);
    return ScoreMod(score);
  }
  return mod_of<ScoreMod>(mod, buffers, "ScoreMod", &trace_score);
}

MaskMod mask_mod_of(nb::handle mod, nb::handle buffers) {
  return mod_of<MaskMod>(mod, buffers, "MaskMod", &trace_mask);
}

void register_mods(nb::module_& module) {
  nb::class_<ScoreMod> score(
      module, "ScoreMod",
      R"doc(How a score is changed: a text, or a function of (score, b, h, q_idx, kv_idx) over Exprs, called once.

>>> import numpy, quire
>>> quire.ScoreMod(lambda score, b, h, q_idx, kv_idx: 20.0 * quire.tanh(score / 20.0))
quire.ScoreMod('20.0 * tanh(score / 20.0)')
>>> mod = quire.ScoreMod("score + bias[h]", {"bias": numpy.array([1.0, 2.0], numpy.float32)})
>>> mod.buffer_names
['bias'])doc");
  score.def(
      "__init__",
      [](ScoreMod* self, nb::handle mod, nb::handle buffers) {
        new (self) ScoreMod(score_mod_of(mod, buffers));
      },
      nb::arg("mod"), nb::arg("buffers") = nb::none());
  refuse_other_arguments<ScoreMod>(score, "ScoreMod", kModSignature);
  define_mod<ScoreMod>(score, "ScoreMod");

  nb::class_<MaskMod> mask(
      module, "MaskMod",
      R"doc(Which keys a query may see: a text, or a function of (b, h, q_idx, kv_idx) over Exprs, called once. Combined by & | ~.

>>> import quire
>>> causal = quire.MaskMod(lambda b, h, q_idx, kv_idx: q_idx >= kv_idx)
>>> causal & quire.MaskMod("q_idx - kv_idx < 256")
quire.MaskMod('(q_idx >= kv_idx) & (q_idx - kv_idx < 256)'))doc");
  mask.def(
      "__init__",
      [](MaskMod* self, nb::handle mod, nb::handle buffers) {
        new (self) MaskMod(mask_mod_of(mod, buffers));
      },
      nb::arg("mod"), nb::arg("buffers") = nb::none());
  refuse_other_arguments<MaskMod>(mask, "MaskMod", kModSignature);
  define_mod<MaskMod>(mask, "MaskMod");
  define_logic(mask);
  define_calls(score, mask);
}

}  // namespace quire::python
