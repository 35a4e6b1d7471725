// The inside of random_formula: functions that call each other (integer, real, truth), each given a
// budget of operations that it spends on one operation and its arguments. Integers carry their
// range, so that an index or a divisor is guarded only where it needs to be. Tests only; include
// random_formula.h instead.
#pragma once
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "formula/build.h"
#include "formula/graph.h"
#include "formula/type_rules.h"
#include "tests/support/int_range.h"
#include "tests/support/random_formula.h"

namespace quire::testing {

class RandomGenerator {
 public:
  using NodeId = formula::NodeId;

  RandomGenerator(std::mt19937_64& random, const RandomFormulaOptions& options,
                  std::vector<Buffer> buffers);
  Formula make(ValueType root);

 private:
  struct Int {
    NodeId id;
    IntRange range;
  };
  struct Choice {
    Op op;
    int weight;
  };
  static constexpr Int kNoInt = {formula::kNoNode, {0, 0}};

  // Chance.
  std::int64_t below(std::int64_t n) { return testing::below(random_, n); }
  std::int64_t between(std::int64_t low, std::int64_t high) { return low + below(high - low + 1); }
  bool chance(int percent) { return testing::chance(random_, percent); }
  template <class T>
  const T& one_of(std::span<const T> values) {
    return values[static_cast<std::size_t>(below(static_cast<std::int64_t>(values.size())))];
  }
  Op choose(std::span<const Choice> choices);
  bool allowed(Op op) const;

  // Nodes.
  static ValueType type_of(const Buffer& buffer) { return formula::element_type(buffer.dtype()); }
  static std::span<const std::int64_t> axes(const Buffer& buffer) { return buffer.view().shape(); }
  NodeId as(NodeId id, ValueType type) { return make_cast(graph_, id, type); }
  NodeId real_constant(double value) { return make_float(graph_, value); }
  Int int_constant(std::int64_t value) { return {make_int(graph_, value), {value, value}}; }
  NodeId binary(Op op, NodeId a, NodeId b) { return make_binary(graph_, op, a, b); }
  NodeId unary(Op op, NodeId a) { return make_unary(graph_, op, a); }

  // Integers (random_integers.cc). Those that say so give kNoNode where the operation cannot be
  // used.
  Int integer(int budget);
  Int leaf_int();
  Int affine();
  Int int_operation(Op op, int budget);  // or kNoNode
  Int int_arithmetic(Op op, int budget);
  Int int_power(int budget);  // or kNoNode
  Int int_of_one(Op op, int budget);
  Int int_of_three(Op op, int budget);
  Int bit_operation(Op op, int budget);  // or kNoNode
  Int divisor(int budget);
  NodeId index(std::int64_t n, int budget);

  // Buffers (random_integers.cc).
  std::vector<NodeId> indices(const Buffer& buffer, std::size_t count, int budget);
  static bool can_index(const Buffer& buffer, std::size_t count);
  Int read(Op op, ValueType type, int budget);              // or kNoNode; of any type
  NodeId dot(const Buffer& a, ValueType type, int budget);  // or kNoNode

  // Floats (random_reals.cc).
  NodeId real(int budget);
  NodeId leaf_real();
  NodeId scaled(const Int& x);
  NodeId positive(int budget);
  NodeId softcap(int budget);
  bool allowed_real(Op op) const;
  NodeId float_operation(Op op, int budget);  // or kNoNode
  NodeId float_function(Op op, int budget);

  // Bools (random_reals.cc).
  NodeId truth(int budget);
  NodeId leaf_truth();
  NodeId bool_operation(Op op, int budget);
  NodeId same_document();  // or kNoNode
  NodeId window();
  Op comparison();

  std::mt19937_64& random_;
  const RandomFormulaOptions& options_;
  std::vector<Buffer> buffers_;
  std::vector<IntRange> ranges_;  // of the elements of each
  formula::Graph graph_;
  std::vector<Int> ints_;  // made so far, to be used again
  std::vector<NodeId> floats_, bools_;
};

}  // namespace quire::testing
