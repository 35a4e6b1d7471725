// KeyStream: the keys and values of all pieces that a rank needs, one piece after the other,
// ascending: its own in place, those of other ranks as they arrive, with the next two always on
// their way. What others need of this rank's own is sent from the start. Context_parallel layer.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include "context_parallel/call.h"
#include "quire/communicator.h"

namespace quire::context_parallel {

/// Keys and values of a piece: [B, Hkv, tokens, dim].
struct PieceKeys {
  std::int64_t piece = 0;
  ConstTensorView k, v;
};

class KeyStream {
 public:
  /// Starts sending and receiving.
  KeyStream(const Call& call, const ConstTensorView& k, const ConstTensorView& v);

  /// The keys of a piece that this rank needs; pieces ascending. Views are valid until the next
  /// call.
  PieceKeys get(std::int64_t piece);
  /// Waits until all others have what they need.
  void finish();

 private:
  struct Slot {
    Message message;
    Communicator::Ticket ticket = -1;
    std::int64_t piece = -1;  // -1: free
  };
  static constexpr int kTag = 1;

  std::size_t key_bytes(std::int64_t piece) const;
  std::size_t value_bytes(std::int64_t piece) const;
  PieceKeys views(std::int64_t piece, std::byte* data) const;
  void send_mine();
  void receive_next(Slot& slot);

  const Call& call_;
  ConstTensorView k_, v_;
  std::array<Slot, 2> slots_;
  std::int64_t next_ = 0;    // piece to receive
  std::int64_t given_ = -1;  // slot of the piece that the caller has
  std::vector<Communicator::Ticket> sends_;
};

}  // namespace quire::context_parallel
