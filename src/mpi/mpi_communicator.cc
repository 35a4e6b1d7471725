// A Communicator over MPI. Nothing else in the project includes mpi.h. Mpi layer.
#include "quire/mpi_communicator.h"

#include <mpi.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <limits>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "quire/error.h"

namespace quire {
namespace {

void check(int result, const char* function) {
  if (result == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(result, text, &length);
  throw Error(ErrorKind::runtime, std::string("[mpi] ") + function + ": " + text);
}

// MPI counts in ints: larger messages are sent in parts.
constexpr std::size_t kMostBytes = std::size_t{1} << 30;

// MPI moves large messages only inside its calls. During the lifetime of this object, a thread
// makes such calls.
class Progress {
 public:
  explicit Progress(MPI_Comm comm) {
    int level = MPI_THREAD_SINGLE;
    MPI_Query_thread(&level);
    if (level < MPI_THREAD_MULTIPLE) return;
    thread_ = std::thread([this, comm] {
      while (!ends_.load(std::memory_order_relaxed)) {
        int found = 0;
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, comm, &found, MPI_STATUS_IGNORE);
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
    });
  }
  ~Progress() {
    ends_ = true;
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::atomic<bool> ends_ = false;
  std::thread thread_;
};

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(MPI_Comm comm, const MpiOptions& options) : options_(options) {
    check(MPI_Comm_dup(comm, &comm_), "MPI_Comm_dup");
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
    progress_ = std::make_unique<Progress>(comm_);
  }
  ~MpiCommunicator() override {
    progress_.reset();
    int is_over = 0;
    MPI_Finalized(&is_over);
    if (is_over == 0) MPI_Comm_free(&comm_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Ticket isend(const Message& message, int to, int tag) override {
    Transfer& made = under_way_[next_];
    made.message = message;
    for (std::size_t at = 0; at == 0 || at < message.size; at += kMostBytes) {
      made.requests.emplace_back();
      check(MPI_Isend(message.data + at, part(message, at), MPI_BYTE, to, tag, comm_,
                      &made.requests.back()),
            "MPI_Isend");
    }
    return next_++;
  }
  Ticket irecv(const Message& message, int from, int tag) override {
    Transfer& made = under_way_[next_];
    made.message = message;
    for (std::size_t at = 0; at == 0 || at < message.size; at += kMostBytes) {
      made.requests.emplace_back();
      check(MPI_Irecv(message.data + at, part(message, at), MPI_BYTE, from, tag, comm_,
                      &made.requests.back()),
            "MPI_Irecv");
    }
    return next_++;
  }
  void wait(Ticket ticket) override {
    const auto found = under_way_.find(ticket);
    if (found == under_way_.end())
      throw Error(ErrorKind::value, "[mpi] no transfer has ticket " + std::to_string(ticket));
    wait_all(found->second.requests);
    under_way_.erase(found);
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    if (mine.size() > static_cast<std::size_t>(std::numeric_limits<int>::max()))
      throw Error(ErrorKind::not_implemented, "[mpi] a gathering of more than 2 GiB per rank");
    std::vector<MPI_Request> request(1);
    check(MPI_Iallgather(mine.data(), static_cast<int>(mine.size()), MPI_BYTE, all.data(),
                         static_cast<int>(mine.size()), MPI_BYTE, comm_, request.data()),
          "MPI_Iallgather");
    wait_all(request);
  }

 private:
  struct Transfer {
    Message message;
    std::vector<MPI_Request> requests;
  };
  static int part(const Message& message, std::size_t at) {
    return static_cast<int>(std::min(kMostBytes, message.size - at));
  }
  void wait_all(std::vector<MPI_Request>& requests) const {
    const auto count = static_cast<int>(requests.size());
    if (options_.timeout_seconds <= 0) {
      check(MPI_Waitall(count, requests.data(), MPI_STATUSES_IGNORE), "MPI_Waitall");
      return;
    }
    const auto begin = std::chrono::steady_clock::now();
    for (int done = 0;;) {
      check(MPI_Testall(count, requests.data(), &done, MPI_STATUSES_IGNORE), "MPI_Testall");
      if (done != 0) return;
      const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - begin;
      if (waited.count() > options_.timeout_seconds)
        throw Error(ErrorKind::runtime,
                    "[mpi] no answer in " + std::to_string(options_.timeout_seconds) + " seconds");
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  MpiOptions options_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, size_ = 0;
  std::unique_ptr<Progress> progress_;
  Ticket next_ = 0;
  std::map<Ticket, Transfer> under_way_;
};

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(const MpiOptions& options) {
  return std::make_unique<MpiCommunicator>(MPI_COMM_WORLD, options);
}

std::unique_ptr<Communicator> make_mpi_communicator(const void* mpi_comm,
                                                    const MpiOptions& options) {
  return std::make_unique<MpiCommunicator>(*static_cast<const MPI_Comm*>(mpi_comm), options);
}

MpiSession::MpiSession(int* argc, char*** argv) {
  int is_there = 0, level = 0;
  check(MPI_Initialized(&is_there), "MPI_Initialized");
  if (is_there != 0) return;
  check(MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
  is_owner_ = true;
}

MpiSession::~MpiSession() {
  if (is_owner_) MPI_Finalize();
}

}  // namespace quire
