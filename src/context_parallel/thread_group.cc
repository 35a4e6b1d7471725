// A group of ranks that are threads: a message waits in one place until both sides have arrived,
// and is then copied. Context_parallel layer.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>

#include "quire/communicator.h"
#include "quire/error.h"
#include "runtime/check_size.h"
#include "runtime/fail.h"

namespace quire {

Communicator::~Communicator() = default;

Message Message::make(std::size_t size) {
  const std::shared_ptr<std::byte[]> memory(new std::byte[std::max<std::size_t>(size, 1)]);
  return {memory, memory.get(), size};
}

namespace {

using Clock = std::chrono::steady_clock;
constexpr const char* kThreadGroup = "thread group";

// One side of a message. The side that finds the other one copies.
struct Transfer {
  Message message;
  std::optional<Clock::time_point> done;  // when it is complete; in the future on a slow link
};

// What all ranks share.
class Hub {
 public:
  Hub(int ranks, const ThreadGroupOptions& options)
      : options_(options), is_there_(ranks, true), link_free_(ranks), rounds_(ranks, 0) {}

  int size() const { return static_cast<int>(is_there_.size()); }

  std::shared_ptr<Transfer> post(const Message& message, int from, int to, int tag, bool sends) {
    const std::scoped_lock lock(mutex_);
    auto mine = std::make_shared<Transfer>(Transfer{message, {}});
    Meeting& meeting = meetings_[{from, to, tag}];
    std::deque<std::shared_ptr<Transfer>>& others = sends ? meeting.receives : meeting.sends;
    if (others.empty()) {
      (sends ? meeting.sends : meeting.receives).push_back(mine);
      return mine;
    }
    const std::shared_ptr<Transfer> other = others.front();
    others.pop_front();
    Transfer& source = sends ? *mine : *other;
    Transfer& target = sends ? *other : *mine;
    if (source.message.size != target.message.size)
      fail(ErrorKind::runtime, kThreadGroup, "rank {} sends {} bytes where rank {} expects {}",
           from, source.message.size, to, target.message.size);
    if (source.message.size > 0)
      std::memcpy(target.message.data, source.message.data, source.message.size);
    Clock::time_point end = Clock::now();
    if (options_.bytes_per_second > 0) {
      const std::chrono::duration<double> takes(static_cast<double>(source.message.size) /
                                                options_.bytes_per_second);
      end = std::max(end, link_free_[to]) + std::chrono::duration_cast<Clock::duration>(takes);
      link_free_[to] = end;
    }
    source.done = target.done = end;
    changed_.notify_all();
    return mine;
  }

  void wait(const Transfer& transfer, int other) {
    std::unique_lock lock(mutex_);
    wait_until(
        lock, [&] { return transfer.done.has_value(); }, other);
    lock.unlock();
    std::this_thread::sleep_until(*transfer.done);
  }

  // Rounds are counted by each rank; the bytes of a round stay until all have read them.
  void all_gather(int rank, std::span<const std::byte> mine, std::span<std::byte> all) {
    std::unique_lock lock(mutex_);
    const std::int64_t round = rounds_[rank]++;
    Round& here = gathered_[round];
    if (here.parts.empty()) here.parts.resize(is_there_.size());
    here.parts[rank].assign(mine.begin(), mine.end());
    ++here.given;
    changed_.notify_all();
    wait_until(
        lock, [&] { return gathered_[round].given == size(); }, -1);
    for (std::size_t i = 0; i < is_there_.size(); ++i) {
      const std::vector<std::byte>& part = gathered_[round].parts[i];
      if (part.size() != mine.size())
        fail(ErrorKind::runtime, kThreadGroup,
             "rank {} gives {} bytes to a gathering, rank {} gives {}", i, part.size(), rank,
             mine.size());
      std::copy(part.begin(), part.end(), all.begin() + i * mine.size());
    }
    if (++gathered_[round].read == size()) gathered_.erase(round);
  }

  void leave(int rank) {
    const std::scoped_lock lock(mutex_);
    is_there_[rank] = false;
    changed_.notify_all();
  }

 private:
  struct Meeting {
    std::deque<std::shared_ptr<Transfer>> sends, receives;
  };
  struct Round {
    std::vector<std::vector<std::byte>> parts;
    int given = 0, read = 0;
  };

  // `other`: the rank we wait for; -1: all ranks.
  template <class Ready>
  void wait_until(std::unique_lock<std::mutex>& lock, Ready ready, int other) {
    const auto limit = std::chrono::duration<double>(options_.timeout_seconds);
    const auto gone = [&]() -> int {
      for (int i = 0; i < size(); ++i)
        if ((other < 0 || other == i) && !is_there_[i]) return i;
      return -1;
    };
    if (!changed_.wait_for(lock, limit, [&] { return ready() || gone() >= 0; }))
      fail(ErrorKind::runtime, kThreadGroup, "no answer in {} seconds", options_.timeout_seconds);
    if (!ready()) fail(ErrorKind::runtime, kThreadGroup, "rank {} has left the group", gone());
  }

  ThreadGroupOptions options_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<bool> is_there_;
  std::vector<Clock::time_point> link_free_;
  std::vector<std::int64_t> rounds_;
  std::map<std::tuple<int, int, int>, Meeting> meetings_;
  std::map<std::int64_t, Round> gathered_;
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<Hub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}
  ~ThreadCommunicator() override { hub_->leave(rank_); }

  int rank() const override { return rank_; }
  int size() const override { return hub_->size(); }
  Ticket isend(const Message& message, int to, int tag) override {
    return add(hub_->post(message, rank_, to, tag, true), to);
  }
  Ticket irecv(const Message& message, int from, int tag) override {
    return add(hub_->post(message, from, rank_, tag, false), from);
  }
  void wait(Ticket ticket) override {
    const auto node = under_way_.extract(ticket);
    if (node.empty()) fail(ErrorKind::value, kThreadGroup, "no transfer has ticket {}", ticket);
    hub_->wait(*node.mapped().first, node.mapped().second);
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override {
    hub_->all_gather(rank_, mine, all);
  }

 private:
  Ticket add(std::shared_ptr<Transfer> transfer, int other) {
    under_way_.emplace(next_, std::pair(std::move(transfer), other));
    return next_++;
  }

  std::shared_ptr<Hub> hub_;
  int rank_;
  Ticket next_ = 0;
  std::map<Ticket, std::pair<std::shared_ptr<Transfer>, int>> under_way_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_thread_group(int ranks,
                                                             const ThreadGroupOptions& options) {
  check_size("make_thread_group", "the number of ranks", ranks, 1, 4096);
  const auto hub = std::make_shared<Hub>(ranks, options);
  std::vector<std::unique_ptr<Communicator>> group;
  for (int rank = 0; rank < ranks; ++rank)
    group.push_back(std::make_unique<ThreadCommunicator>(hub, rank));
  return group;
}

}  // namespace quire
