// Parses one expression of the text form into a node of a graph: operators by precedence, calls,
// indices. One loop over tokens with two stacks (values, and constructs waiting for more text), so
// nesting cannot exhaust the call stack and time is linear. build.h checks types; its errors are
// given their position here. Formula layer.
#pragma once
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "formula/build.h"
#include "formula/graph.h"
#include "formula/op_table.h"
#include "formula/text/lexer.h"
#include "formula/text/symbols.h"
#include "quire/function_ref.h"

namespace quire::formula {

class ExpressionParser {
 public:
  /// The arguments must outlive it.
  ExpressionParser(TokenStream& tokens, const Symbols& symbols, Graph& graph)
      : tokens_(tokens), symbols_(symbols), graph_(graph) {}

  /// Reads up to a separator or the end of the text, which becomes the current token.
  NodeId read();

 private:
  // A complete value, and where its text begins.
  struct Value {
    NodeId id = kNoNode;
    std::size_t place = 0;
  };

  // A construct on the stack that waits for its operands or its closing bracket.
  struct Frame {
    enum class Kind { kInfix, kPrefix, kGroup, kCall, kIndex, kReduce };
    Kind kind;
    Op op = Op::kLoad;
    std::string_view name = {};  // kCall, kReduce
    Precedence precedence = Precedence::kAtom;
    std::size_t place = 0;        // of the operator, or of the name or parenthesis it begins with
    std::size_t bracket = 0;      // where its ( or [ is
    std::size_t first_value = 0;  // its arguments or indices are the values from here on
    const Buffer* buffer = nullptr;  // kIndex
    // kReduce (sum, dot): the buffers so far, and how many of the values index the first.
    std::array<const Buffer*, 2> slices = {nullptr, nullptr};
    std::size_t slice_count = 0;
    std::size_t split = 0;

    bool is_operator() const { return kind == Kind::kInfix || kind == Kind::kPrefix; }
    // An infix operator waits for its right side without nesting deeper; only ** can pile up.
    bool is_level() const { return kind != Kind::kInfix || op == Op::kPow; }
  };
  using Kind = Frame::Kind;

  bool top_is(Kind kind) const { return !frames_.empty() && frames_.back().kind == kind; }
  bool top_is_operator() const { return !frames_.empty() && frames_.back().is_operator(); }
  void push(Frame frame);
  Frame pop();
  void reduce();
  void reduce_above(Precedence precedence);
  void reduce_all();

  // Where a value is expected.
  void operand();
  bool prefix();
  void integer();
  bool name();
  NodeId constant(const Token& name) const;
  void begin_call(Op op);
  bool begin_slice(const Buffer& buffer);
  bool reduction_argument();

  // After a value.
  bool operators();
  void infix(Op op, Precedence precedence);
  void comma();
  bool close();
  void end_call(const Frame& frame);
  NodeId plain_power(NodeId a, NodeId b) const;
  void end_slice(const Buffer& buffer, std::size_t first, std::size_t place);
  void end_reduction(const Frame& frame);
  void check_index(const Frame& frame) const;

  void push_value(NodeId id, std::size_t place) { values_.push_back({id, place}); }
  std::vector<NodeId> take_values(std::size_t first);
  NodeId build(std::size_t place, FunctionRef<NodeId()> make) const;

  void check_arity(const Frame& frame, std::size_t needs, std::size_t got) const;
  [[noreturn]] void fail_unknown(const Token& name) const;
  [[noreturn]] void fail_behind_value() const;
  [[noreturn]] void fail_unclosed() const;
  std::string location(std::size_t place) const;

  TokenStream& tokens_;
  const Symbols& symbols_;
  Graph& graph_;
  std::vector<Value> values_;
  std::vector<Frame> frames_;
  int depth_ = 0;  // nesting levels among the frames
};

}  // namespace quire::formula
