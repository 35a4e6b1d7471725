// The functions of the formula language, by the names they have in C++. Given numbers alone they
// make a constant. Python layer.
#include "exprs.h"
#include "register.h"

namespace quire::python {
namespace {

template <Op op>
void define_unary(nb::module_& module, const char* name) {
  module.def(
      name, [name](nb::handle x) { return PyExpr{detail::unary(op, operand(x, name))}; },
      nb::arg("x"));
}

template <Op op>
void define_binary(nb::module_& module, const char* name) {
  module.def(
      name,
      [name](nb::handle a, nb::handle b) {
        return PyExpr{detail::binary(op, operand(a, name), operand(b, name))};
      },
      nb::arg("a"), nb::arg("b"));
}

void define_unaries(nb::module_& module) {
  define_unary<Op::kToInt>(module, "to_int");
  define_unary<Op::kToFloat>(module, "to_float");
  define_unary<Op::kToBool>(module, "to_bool");
  define_unary<Op::kAbs>(module, "abs");
  define_unary<Op::kSign>(module, "sign");
  define_unary<Op::kFloor>(module, "floor");
  define_unary<Op::kCeil>(module, "ceil");
  define_unary<Op::kRound>(module, "round");
  define_unary<Op::kTrunc>(module, "trunc");
  define_unary<Op::kNot>(module, "logical_not");
  define_unary<Op::kExp>(module, "exp");
  define_unary<Op::kExp2>(module, "exp2");
  define_unary<Op::kExpm1>(module, "expm1");
  define_unary<Op::kLog>(module, "log");
  define_unary<Op::kLog2>(module, "log2");
  define_unary<Op::kLog1p>(module, "log1p");
  define_unary<Op::kSqrt>(module, "sqrt");
  define_unary<Op::kRsqrt>(module, "rsqrt");
  define_unary<Op::kSin>(module, "sin");
  define_unary<Op::kCos>(module, "cos");
  define_unary<Op::kTanh>(module, "tanh");
  define_unary<Op::kSigmoid>(module, "sigmoid");
  define_unary<Op::kErf>(module, "erf");
  define_unary<Op::kRelu>(module, "relu");
  define_unary<Op::kGelu>(module, "gelu");
  define_unary<Op::kGeluTanh>(module, "gelu_tanh");
  define_unary<Op::kSilu>(module, "silu");
  define_unary<Op::kSoftplus>(module, "softplus");
}

void define_binaries(nb::module_& module) {
  define_binary<Op::kMin>(module, "minimum");
  define_binary<Op::kMax>(module, "maximum");
  define_binary<Op::kDiv>(module, "true_div");
  define_binary<Op::kFloorDiv>(module, "floor_div");
  define_binary<Op::kMod>(module, "remainder");
  define_binary<Op::kPow>(module, "pow");
  define_binary<Op::kAnd>(module, "logical_and");
  define_binary<Op::kOr>(module, "logical_or");
  define_binary<Op::kXor>(module, "logical_xor");
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
      "a where the condition is not zero, else b. Both are computed.");
  module.def(
      "clamp",
      [](nb::handle x, nb::handle low, nb::handle high) {
        return PyExpr{detail::ternary(Op::kClamp, operand(x, "clamp"), operand(low, "clamp"),
                                      operand(high, "clamp"))};
      },
      nb::arg("x"), nb::arg("low"), nb::arg("high"), "minimum(maximum(x, low), high)");
  module.def(
      "sum",
      [](nb::handle slice) {
        const BufferSlice s = slice_of(slice, "sum");
        return PyExpr{detail::sum(s.buffer(), s.indices())};
      },
      nb::arg("slice"), "sum(table[h]): all elements of the axes that are left.");
  module.def(
      "dot",
      [](nb::handle a, nb::handle b) {
        const BufferSlice x = slice_of(a, "dot"), y = slice_of(b, "dot");
        return PyExpr{detail::dot(x.buffer(), x.indices(), y.buffer(), y.indices())};
      },
      nb::arg("a"), nb::arg("b"),
      "dot(q_rope[b, h, q_idx], k_rope[b, 0, kv_idx]): the shapes left must be equal.");
}

}  // namespace quire::python
