// The functions of the formula language, with their names in C++. Applied to plain numbers they
// make a constant. Python layer.
#include <fmt/format.h>

#include <string>

#include "exprs.h"
#include "register.h"

namespace quire::python {
namespace {

// A function as its docstring shows it: its value at a score of `at`.
struct Described {
  const char* name;
  const char* meaning;
  const char* at;
  const char* gives;

  // `arguments`: what it is called with, "score" or "score, 3".
  std::string text(const char* arguments) const {
    return fmt::format(
        "{1}\n\n"
        ">>> import numpy, quire\n"
        ">>> mod = quire.ScoreMod(lambda score, b, h, q_idx, kv_idx: quire.{0}({2}))\n"
        ">>> round(quire.evaluate(mod, numpy.full((1, 1, 1, 1), {3})).item(), 6)\n"
        "{4}",
        name, meaning, arguments, at, gives);
  }
};

template <Op op>
void define_unary(nb::module_& module, const Described& what) {
  const char* const name = what.name;
  module.def(
      name, [name](nb::handle x) { return PyExpr{detail::unary(op, operand(x, name))}; },
      nb::arg("x"), what.text("score").c_str());
}

template <Op op>
void define_float_function(nb::module_& module, const char* name, const char* meaning) {
  const std::string text = fmt::format(
      "{1}\n\n"
      ">>> import quire\n"
      ">>> quire.ScoreMod(lambda score, b, h, q_idx, kv_idx: quire.{0}(score))\n"
      "quire.ScoreMod('{0}(score)')",
      name, meaning);
  module.def(
      name, [name](nb::handle x) { return PyExpr{detail::unary(op, operand(x, name))}; },
      nb::arg("x"), text.c_str());
}

template <Op op>
void define_binary(nb::module_& module, const Described& what) {
  const char* const name = what.name;
  module.def(
      name,
      [name](nb::handle a, nb::handle b) {
        return PyExpr{detail::binary(op, operand(a, name), operand(b, name))};
      },
      nb::arg("a"), nb::arg("b"), what.text("score, 3").c_str());
}

void define_unaries(nb::module_& module) {
  define_unary<Op::kToInt>(module, {"to_int", "The integer part.", "-1.5", "-1.0"});
  define_unary<Op::kToFloat>(module, {"to_float", "As a float; of a bool, 0 or 1.", "2.5", "2.5"});
  define_unary<Op::kToBool>(module, {"to_bool", "Whether it is not zero.", "2.5", "1.0"});
  define_unary<Op::kAbs>(module, {"abs", "Without its sign.", "-1.5", "1.5"});
  define_unary<Op::kSign>(module, {"sign", "-1, 0 or 1.", "-1.5", "-1.0"});
  define_unary<Op::kFloor>(module, {"floor", "The next whole number below.", "-1.5", "-2.0"});
  define_unary<Op::kCeil>(module, {"ceil", "The next whole number above.", "-1.5", "-1.0"});
  define_unary<Op::kRound>(
      module, {"round", "The nearest whole number; halves go to the even one.", "2.5", "2.0"});
  define_unary<Op::kTrunc>(module, {"trunc", "The whole number towards zero.", "-1.5", "-1.0"});
  define_unary<Op::kNot>(module, {"logical_not", "Whether it is zero.", "2.5", "0.0"});
#define QUIRE_FLOAT_FUNCTION(name, function, ulps, meaning) \
  define_float_function<Op::k##name>(module, #function, meaning);
#include "quire/op_table.inc"
}

void define_binaries(nb::module_& module) {
  define_binary<Op::kMin>(module, {"minimum", "The smaller one; NaN if one is.", "7.5", "3.0"});
  define_binary<Op::kMax>(module, {"maximum", "The larger one; NaN if one is.", "7.5", "7.5"});
  define_binary<Op::kDiv>(module, {"true_div", "a / b as floats.", "7.5", "2.5"});
  define_binary<Op::kFloorDiv>(module, {"floor_div", "a // b: floor(a / b).", "-1.5", "-1.0"});
  define_binary<Op::kMod>(
      module, {"remainder", "a % b: a - floor(a / b) * b, with the sign of b.", "-1.5", "1.5"});
  define_binary<Op::kPow>(module, {"pow", "a ** b.", "2.0", "8.0"});
  define_binary<Op::kAnd>(module, {"logical_and", "Whether neither is zero.", "0.0", "0.0"});
  define_binary<Op::kOr>(module, {"logical_or", "Whether one is not zero.", "0.0", "1.0"});
  define_binary<Op::kXor>(module,
                          {"logical_xor", "Whether exactly one is not zero.", "0.0", "1.0"});
}

// A whole buffer is a slice without indices.
BufferSlice slice_of(nb::handle object, const char* where) {
  if (nb::isinstance<Buffer>(object)) return BufferSlice(nb::cast<const Buffer&>(object), {});
  if (nb::isinstance<BufferSlice>(object)) return nb::cast<const BufferSlice&>(object);
  throw nb::type_error(
      (std::string("[") + where + "] a Buffer, or one with some indices, is needed").c_str());
}

}  // namespace

void register_functions(nb::module_& module) {
  define_unaries(module);
  define_binaries(module);
  module.def(
      "where",
      [](nb::handle condition, nb::handle a, nb::handle b) {
        return PyExpr{detail::ternary(Op::kWhere, operand(condition, "where"), operand(a, "where"),
                                      operand(b, "where"))};
      },
      nb::arg("condition"), nb::arg("a"), nb::arg("b"),
      R"doc(a where the condition is not zero, else b. Both are computed.

>>> import quire
>>> quire.ScoreMod(lambda score, b, h, q_idx, kv_idx: quire.where(q_idx >= kv_idx, score, -float("inf")))
quire.ScoreMod('where(q_idx >= kv_idx, score, -inf)'))doc");
  module.def(
      "clamp",
      [](nb::handle x, nb::handle low, nb::handle high) {
        return PyExpr{detail::ternary(Op::kClamp, operand(x, "clamp"), operand(low, "clamp"),
                                      operand(high, "clamp"))};
      },
      nb::arg("x"), nb::arg("low"), nb::arg("high"), R"doc(minimum(maximum(x, low), high)

>>> import quire
>>> quire.ScoreMod(lambda score, b, h, q_idx, kv_idx: quire.clamp(score, -50.0, 50.0))
quire.ScoreMod('clamp(score, -50.0, 50.0)'))doc");
  module.def(
      "sum",
      [](nb::handle slice) {
        const BufferSlice s = slice_of(slice, "sum");
        return PyExpr{detail::sum(s.buffer(), s.indices())};
      },
      nb::arg("slice"), R"doc(sum(table[h]): all elements of the axes that are left.

>>> import numpy, quire
>>> table = quire.Buffer(numpy.ones((8, 3), numpy.float32), "table")
>>> quire.ScoreMod(lambda score, b, h, q_idx, kv_idx: score + quire.sum(table[h]))
quire.ScoreMod('score + sum(table[h])'))doc");
  module.def(
      "dot",
      [](nb::handle a, nb::handle b) {
        const BufferSlice x = slice_of(a, "dot"), y = slice_of(b, "dot");
        return PyExpr{detail::dot(x.buffer(), x.indices(), y.buffer(), y.indices())};
      },
      nb::arg("a"), nb::arg("b"),
      R"doc(dot(q_rope[b, h, q_idx], k_rope[b, 0, kv_idx]): the shapes left must be equal.

>>> import numpy, quire
>>> left = quire.Buffer(numpy.ones((16, 4), numpy.float32), "left")
>>> right = quire.Buffer(numpy.ones((16, 4), numpy.float32), "right")
>>> quire.ScoreMod(lambda score, b, h, q_idx, kv_idx: score + quire.dot(left[q_idx], right[kv_idx]))
quire.ScoreMod('score + dot(left[q_idx], right[kv_idx])'))doc");
}

}  // namespace quire::python
