// Packs, sends and puts in place pieces of heads. Context_parallel layer.
#include "context_parallel/head_exchange.h"

#include <utility>

#include "tensor/convert.h"

namespace quire::context_parallel {
namespace {

TokenField field_of(const ConstTensorView& view, std::int64_t kv_heads) {
  return {view.dim(0), view.dim(1) / kv_heads, view.dim(3), view.dtype()};
}

// Views of equal shape [B, H, rows, dim]; rows of `to` are contiguous.
void copy_rows(const ConstTensorView& from, const TensorView& to) {
  if (from.numel() == 0) return;
  for (std::int64_t b = 0; b < from.dim(0); ++b)
    for (std::int64_t h = 0; h < from.dim(1); ++h)
      copy_elements(from.select(0, b).select(0, h), to.dtype(),
                    to.select(0, b).select(0, h).data());
}

std::size_t bytes_of(const ConstTensorView& part) {
  return TokenField{part.dim(0), part.dim(1), part.dim(3), part.dtype()}.bytes(part.dim(2));
}

void unpack(const Message& message, const std::vector<TensorView>& to) {
  std::size_t at = 0;
  for (const TensorView& view : to) {
    copy_rows(ConstTensorView(message.data + at, view.dtype(), view.shape()), view);
    at += bytes_of(view);
  }
}

}  // namespace

HeadExchange::HeadExchange(const Call& call, std::vector<ConstTensorView> given,
                           std::vector<TensorView> wanted)
    : call_(call),
      given_(std::move(given)),
      wanted_(std::move(wanted)),
      mine_(HeadRange::of(call.rank(), call.shards().ranks(), call.shape().kv_heads)) {
  const std::int64_t kv_heads = call.shape().kv_heads;
  for (const ConstTensorView& view : given_) {
    there_.push_back(field_of(view, kv_heads));
    const TokenField& of = there_.back();
    whole_.push_back(Tensor::empty({of.batch, of.heads, call.shards().length(), of.dim}, of.dtype));
  }
  for (const TensorView& view : wanted_) back_.push_back(field_of(view, kv_heads));
  arriving_.resize(static_cast<std::size_t>(mine_.size()));
  if (mine_.size() > 0) receive_head(mine_.begin);
  for (int rank = 0; rank < call.shards().ranks(); ++rank) {
    const HeadRange theirs = HeadRange::of(rank, call.shards().ranks(), kv_heads);
    if (rank == call.rank()) continue;
    for (std::int64_t head = theirs.begin; head < theirs.end; ++head)
      for (std::int64_t piece = 0; piece < call.shards().pieces(); ++piece)
        if (call.is_mine(piece))
          results_.push_back({head, piece, receive(back_, piece, rank, kBack)});
  }
  send_given();
}

std::size_t HeadExchange::message_bytes(const std::vector<TokenField>& fields,
                                        std::int64_t piece) const {
  std::size_t bytes = 0;
  for (const TokenField& field : fields) bytes += field.bytes(call_.shards().piece(piece).size());
  return bytes;
}

HeadExchange::Arriving HeadExchange::receive(const std::vector<TokenField>& fields,
                                             std::int64_t piece, int from, int tag) {
  Message message = Message::make(message_bytes(fields, piece));
  const Communicator::Ticket ticket = call_.group().irecv(message, from, tag);
  return {std::move(message), ticket};
}

void HeadExchange::send(const std::vector<ConstTensorView>& parts, int to, int tag) {
  std::size_t bytes = 0;
  std::vector<std::size_t> at;
  for (const ConstTensorView& part : parts) {
    at.push_back(bytes);
    bytes += bytes_of(part);
  }
  const Message message = Message::make(bytes);
  for (std::size_t i = 0; i < parts.size(); ++i)
    copy_elements(parts[i], parts[i].dtype(), message.data + at[i]);
  sends_.push_back(call_.group().isend(message, to, tag));
}

void HeadExchange::receive_head(std::int64_t head) {
  std::vector<Arriving>& pieces = arriving_[static_cast<std::size_t>(head - mine_.begin)];
  for (std::int64_t piece = 0; piece < call_.shards().pieces(); ++piece) {
    const int owner = call_.shards().owners()[static_cast<std::size_t>(piece)];
    pieces.push_back(owner == call_.rank() ? Arriving() : receive(there_, piece, owner, kThere));
  }
}

void HeadExchange::send_given() {
  const int ranks = call_.shards().ranks();
  const std::int64_t kv_heads = call_.shape().kv_heads;
  for (std::int64_t turn = 0; turn * ranks < kv_heads + ranks; ++turn) {
    for (std::int64_t piece = 0; piece < call_.shards().pieces(); ++piece) {
      for (int to = 0; call_.is_mine(piece) && to < ranks; ++to) {
        const HeadRange theirs = HeadRange::of(to, ranks, kv_heads);
        if (to == call_.rank() || turn >= theirs.size()) continue;
        std::vector<ConstTensorView> parts;
        for (const ConstTensorView& view : given_)
          parts.push_back(mine(view, theirs.begin + turn, piece));
        send(parts, to, kThere);
      }
    }
  }
}

template <class View>
View HeadExchange::mine(const View& view, std::int64_t head, std::int64_t piece) const {
  const std::int64_t group = view.dim(1) / call_.shape().kv_heads;
  const std::int64_t at = call_.shards().place(piece);
  return view.slice(1, head * group, (head + 1) * group)
      .slice(2, at, at + call_.shards().piece(piece).size());
}

std::vector<TensorView> HeadExchange::targets(std::int64_t head, std::int64_t piece) const {
  std::vector<TensorView> found;
  for (const TensorView& view : wanted_) found.push_back(mine(view, head, piece));
  return found;
}

void HeadExchange::take(std::int64_t head, std::int64_t piece) {
  if (piece == 0 && head + 1 < mine_.end) receive_head(head + 1);
  const Range range = call_.shards().piece(piece);
  std::vector<TensorView> to;
  for (Tensor& one : whole_) to.push_back(one.view().slice(2, range.begin, range.end));
  if (call_.is_mine(piece)) {
    for (std::size_t i = 0; i < given_.size(); ++i) copy_rows(mine(given_[i], head, piece), to[i]);
    return;
  }
  Arriving& here =
      arriving_[static_cast<std::size_t>(head - mine_.begin)][static_cast<std::size_t>(piece)];
  call_.group().wait(here.ticket);
  unpack(here.message, to);
  here.message = {};
}

void HeadExchange::give(std::int64_t head, std::int64_t piece,
                        const std::vector<ConstTensorView>& parts) {
  const int owner = call_.shards().owners()[static_cast<std::size_t>(piece)];
  if (owner != call_.rank()) return send(parts, owner, kBack);
  const std::vector<TensorView> to = targets(head, piece);
  for (std::size_t i = 0; i < to.size(); ++i) copy_rows(parts[i], to[i]);
}

void HeadExchange::finish() {
  for (Result& result : results_) {
    call_.group().wait(result.arriving.ticket);
    unpack(result.arriving.message, targets(result.head, result.piece));
    result.arriving.message = {};
  }
  for (const Communicator::Ticket ticket : sends_) call_.group().wait(ticket);
  sends_.clear();
}

}  // namespace quire::context_parallel
