// HeadExchange: every rank starts with some tokens of all heads, receives all tokens of some heads,
// and sends back what was computed for them. A message is one piece of tokens of one key head and
// of the query heads that share it; pieces arrive in ascending order, one head after the other,
// while the next head is on its way. Context_parallel layer.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "context_parallel/call.h"
#include "context_parallel/head_fields.h"
#include "quire/communicator.h"

namespace quire::context_parallel {

class HeadExchange {
 public:
  /// Starts sending `given` and receiving `wanted`, all of this rank's tokens: [B, H, tokens, dim]
  /// with as many heads as keys or as queries have. Rows of `wanted` are contiguous.
  HeadExchange(const Call& call, std::vector<ConstTensorView> given,
               std::vector<TensorView> wanted);

  const HeadRange& heads() const { return mine_; }
  /// Waits for a piece of a head. Call for each piece of each head: heads in order, pieces
  /// ascending.
  void take(std::int64_t head, std::int64_t piece);
  /// What was given, for all tokens of the head: [B, heads of the group, length, dim]. Pieces not
  /// taken yet are not set.
  ConstTensorView whole(std::size_t index) const { return whole_[index]; }
  /// Sends the results of a piece, in the order of `wanted`: [B, heads of the group, tokens of the
  /// piece, dim].
  void give(std::int64_t head, std::int64_t piece, const std::vector<ConstTensorView>& parts);
  /// Waits until `wanted` is complete and others have what they need.
  void finish();

 private:
  struct Arriving {
    Message message;
    Communicator::Ticket ticket = -1;
  };
  struct Result {
    std::int64_t head = 0, piece = 0;
    Arriving arriving;
  };
  static constexpr int kThere = 3, kBack = 4;  // tags

  std::size_t message_bytes(const std::vector<TokenField>& fields, std::int64_t piece) const;
  Arriving receive(const std::vector<TokenField>& fields, std::int64_t piece, int from, int tag);
  void send(const std::vector<ConstTensorView>& parts, int to, int tag);
  void receive_head(std::int64_t head);
  void send_given();
  // Rows of one of this rank's pieces, for the heads that belong to a key head.
  template <class View>
  View mine(const View& view, std::int64_t head, std::int64_t piece) const;
  std::vector<TensorView> targets(std::int64_t head, std::int64_t piece) const;

  const Call& call_;
  std::vector<ConstTensorView> given_;
  std::vector<TensorView> wanted_;
  HeadRange mine_;
  std::vector<TokenField> there_, back_;
  std::vector<Tensor> whole_;
  std::vector<std::vector<Arriving>> arriving_;  // [this rank's head][piece]
  std::vector<Result> results_;
  std::vector<Communicator::Ticket> sends_;
};

}  // namespace quire::context_parallel
