// A Communicator over MPI, in a library of its own: quire_mpi, quire::mpi after find_package(quire
// COMPONENTS mpi). This header does not include mpi.h, so it works with any MPI. Public; mpi layer.
#pragma once
#include <memory>

#include "quire/communicator.h"
#include "quire/export.h"

namespace quire {

struct MpiOptions {
  /// Longest wait; 0: no limit. MPI itself ends the whole program when a rank dies, unless told
  /// otherwise.
  double timeout_seconds = 0;
};

/// Over a duplicate of MPI_COMM_WORLD. Requires MPI_Init_thread, called directly or by an
/// MpiSession; with MPI_THREAD_MULTIPLE a background thread keeps messages moving while the caller
/// computes. All ranks must call. Throws Error (runtime) if MPI reports one.
QUIRE_API std::unique_ptr<Communicator> make_mpi_communicator(const MpiOptions& options = {});
/// The same over another communicator, passed as a pointer to an MPI_Comm.
QUIRE_API std::unique_ptr<Communicator> make_mpi_communicator(const void* mpi_comm,
                                                              const MpiOptions& options);

/// Calls MPI_Init_thread with MPI_THREAD_MULTIPLE, and MPI_Finalize at its end, unless someone else
/// has.
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
