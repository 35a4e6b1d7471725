// Communicator: what context_parallel.h needs of whatever moves bytes between the processes of a
// group: messages between two ranks, and a small exchange among all. Implementations: threads of
// one process (below), MPI (quire/mpi_communicator.h, a library of its own), torch.distributed (in
// the Python package). Public; context_parallel layer.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "quire/export.h"

namespace quire {

/// Memory of a message. A communicator keeps `owner` until the transfer has ended, however it ends.
struct Message {
  std::shared_ptr<void> owner;
  std::byte* data = nullptr;
  std::size_t size = 0;

  /// New memory, elements not set.
  QUIRE_API static Message make(std::size_t size);
};

/// One per rank and thread that calls. Messages from one rank to another with the same tag arrive
/// in the order in which they were sent. Functions throw Error (runtime) when another rank is gone
/// or does not answer in time; after that the group is of no more use.
class QUIRE_API Communicator {
 public:
  using Ticket = std::int64_t;

  virtual ~Communicator();
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Begins to send or to receive; the memory must be left alone until wait() of the ticket. Sizes
  /// of both sides are equal. Any number may be under way.
  virtual Ticket isend(const Message& message, int to, int tag) = 0;
  virtual Ticket irecv(const Message& message, int from, int tag) = 0;
  /// Returns when the transfer has ended. Each ticket once.
  virtual void wait(Ticket ticket) = 0;
  /// `all` has room for `mine` of every rank, in their order.
  virtual void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
};

struct ThreadGroupOptions {
  double timeout_seconds = 60;  // how long a wait lasts at most
  /// What a rank can receive in a second, to see what a slower link would do; 0: no limit.
  double bytes_per_second = 0;
};

/// A group whose ranks are threads of this process: one communicator for each. One that is
/// destroyed while others wait for it leaves them with an Error.
QUIRE_API std::vector<std::unique_ptr<Communicator>> make_thread_group(
    int ranks, const ThreadGroupOptions& options = {});

}  // namespace quire
