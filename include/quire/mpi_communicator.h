// A Communicator over MPI, in a library of its own: quire_mpi, quire::mpi after find_package(quire
// COMPONENTS mpi). This header needs no mpi.h, so that it fits any MPI. Public; mpi layer.
#pragma once
#include <memory>

#include "quire/communicator.h"
#include "quire/export.h"

namespace quire {

struct MpiOptions {
  /// How long a wait lasts at most; 0: without end. MPI itself ends the whole program when a rank
  /// dies, unless told otherwise.
  double timeout_seconds = 0;
};

/// Over MPI_COMM_WORLD, of which it makes a copy of its own. MPI_Init_thread must have been called,
/// or an MpiSession does that; with MPI_THREAD_MULTIPLE a thread of its own keeps messages going
/// while the caller computes. All ranks call. Throws Error (runtime) where MPI reports one.
QUIRE_API std::unique_ptr<Communicator> make_mpi_communicator(const MpiOptions& options = {});
/// The same over another communicator: a pointer to an MPI_Comm.
QUIRE_API std::unique_ptr<Communicator> make_mpi_communicator(const void* mpi_comm,
                                                              const MpiOptions& options);

/// MPI_Init_thread with MPI_THREAD_MULTIPLE, and MPI_Finalize at its end, if nobody has called
/// them.
class QUIRE_API MpiSession {
 public:
  MpiSession(int* argc = nullptr, char*** argv = nullptr);
  ~MpiSession();
  MpiSession(const MpiSession&) = delete;
  MpiSession& operator=(const MpiSession&) = delete;

 private:
  bool is_owner_ = false;
};

}  // namespace quire
