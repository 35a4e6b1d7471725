// Packs, sends and receives pieces of keys and values. Context_parallel layer.
#include "context_parallel/key_stream.h"

#include <algorithm>

#include "tensor/convert.h"

namespace quire::context_parallel {

KeyStream::KeyStream(const Call& call, const ConstTensorView& k, const ConstTensorView& v)
    : call_(call), k_(k), v_(v) {
  for (Slot& slot : slots_) receive_next(slot);
  send_mine();
}

std::size_t KeyStream::key_bytes(std::int64_t piece) const {
  const AttentionShape& of = call_.shape();
  return static_cast<std::size_t>(of.kv_batch * of.kv_heads * call_.shards().piece(piece).size() *
                                  of.head_dim) *
         dtype_size(of.k_dtype);
}

std::size_t KeyStream::value_bytes(std::int64_t piece) const {
  const AttentionShape& of = call_.shape();
  return static_cast<std::size_t>(of.kv_batch * of.kv_heads * call_.shards().piece(piece).size() *
                                  of.v_head_dim) *
         dtype_size(of.v_dtype);
}

PieceKeys KeyStream::views(std::int64_t piece, std::byte* data) const {
  const AttentionShape& of = call_.shape();
  const std::int64_t tokens = call_.shards().piece(piece).size();
  return {piece, ConstTensorView(data, of.k_dtype, {of.kv_batch, of.kv_heads, tokens, of.head_dim}),
          ConstTensorView(data + key_bytes(piece), of.v_dtype,
                          {of.kv_batch, of.kv_heads, tokens, of.v_head_dim})};
}

void KeyStream::send_mine() {
  for (std::int64_t piece = 0; piece < call_.shards().pieces(); ++piece) {
    if (!call_.is_mine(piece)) continue;
    Message packed;
    for (int to = 0; to < call_.shards().ranks(); ++to) {
      if (to == call_.rank() || !call_.needs(to, piece)) continue;
      if (packed.data == nullptr) {
        packed = Message::make(key_bytes(piece) + value_bytes(piece));
        const std::int64_t at = call_.shards().place(piece);
        const std::int64_t end = at + call_.shards().piece(piece).size();
        copy_elements(k_.slice(2, at, end), k_.dtype(), packed.data);
        copy_elements(v_.slice(2, at, end), v_.dtype(), packed.data + key_bytes(piece));
      }
      sends_.push_back(call_.group().isend(packed, to, kTag));
    }
  }
}

void KeyStream::receive_next(Slot& slot) {
  slot.piece = -1;
  while (next_ < call_.shards().pieces() &&
         (call_.is_mine(next_) || !call_.needs(call_.rank(), next_)))
    ++next_;
  if (next_ == call_.shards().pieces()) return;
  slot.piece = next_++;
  const std::size_t size = key_bytes(slot.piece) + value_bytes(slot.piece);
  const std::size_t most = std::max(size, slot.message.size);
  if (slot.message.owner == nullptr || slot.message.size < size) slot.message = Message::make(most);
  Message part = slot.message;
  part.size = size;
  const int owner = call_.shards().owners()[static_cast<std::size_t>(slot.piece)];
  slot.ticket = call_.group().irecv(part, owner, kTag);
}

PieceKeys KeyStream::get(std::int64_t piece) {
  if (given_ >= 0) {
    receive_next(slots_[static_cast<std::size_t>(given_)]);
    given_ = -1;
  }
  if (call_.is_mine(piece)) {
    const std::int64_t at = call_.shards().place(piece);
    const std::int64_t end = at + call_.shards().piece(piece).size();
    return {piece, k_.slice(2, at, end), v_.slice(2, at, end)};
  }
  given_ = slots_[0].piece == piece ? 0 : 1;
  Slot& slot = slots_[static_cast<std::size_t>(given_)];
  call_.group().wait(slot.ticket);
  return views(piece, slot.message.data);
}

void KeyStream::finish() {
  for (const Communicator::Ticket ticket : sends_) call_.group().wait(ticket);
  sends_.clear();
}

}  // namespace quire::context_parallel
