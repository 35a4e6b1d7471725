// Communicator: how context_parallel.h moves bytes between the processes of a group: messages
// between two ranks, and a small all-gather. Implementations: threads of one process (below), MPI
// (quire/mpi_communicator.h, a library of its own), torch.distributed (in the Python package).
// Public; context_parallel layer.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "quire/export.h"

namespace quire {

/// The memory of a message. A communicator keeps `owner` until the transfer ends, or fails.
struct Message {
  std::shared_ptr<void> owner;
  std::byte* data = nullptr;
  std::size_t size = 0;

  /// New, uninitialised memory.
  QUIRE_API static Message make(std::size_t size);
};

/// One per rank and calling thread. Messages with the same tag between the same two ranks arrive in
/// the order they were sent. Functions throw Error (runtime) when another rank is gone or does not
/// answer in time; after that the group is unusable.
class QUIRE_API Communicator {
 public:
  using Ticket = std::int64_t;

  virtual ~Communicator();
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Starts to send or to receive; leave the memory alone until wait() has returned for the ticket.
  /// Both sides must give the same size. Any number may be in flight.
  virtual Ticket isend(const Message& message, int to, int tag) = 0;
  virtual Ticket irecv(const Message& message, int from, int tag) = 0;
  /// Returns when the transfer has ended. Call it once per ticket.
  virtual void wait(Ticket ticket) = 0;
  /// Gathers `mine` of every rank into `all`, in rank order.
  virtual void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
};

struct ThreadGroupOptions {
  double timeout_seconds = 60;  // longest wait
  /// Limits what a rank receives, to see the effect of a slower link; 0: no limit.
  double bytes_per_second = 0;
};

/// A group whose ranks are threads of this process, one communicator each. Destroying one while
/// others wait for it makes them throw Error.
QUIRE_API std::vector<std::unique_ptr<Communicator>> make_thread_group(
    int ranks, const ThreadGroupOptions& options = {});

}  // namespace quire
