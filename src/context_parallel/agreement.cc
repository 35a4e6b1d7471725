// One all_gather of records of fixed size. Context_parallel layer.
#include "context_parallel/agreement.h"

#include <algorithm>
#include <cstring>

#include "quire/context_parallel.h"
#include "quire/error.h"
#include "runtime/fail.h"

namespace quire::context_parallel {
namespace {

constexpr std::size_t kMostFacts = 32, kMostText = 248;
constexpr std::int64_t kVersion = 1;

struct Record {
  std::int64_t version = kVersion;
  std::int64_t function = 0;  // a hash
  std::int64_t failed = 0, kind = 0, count = 0;
  std::int64_t values[kMostFacts] = {};
  char text[kMostText] = {};
};

}  // namespace

std::int64_t hash_bytes(const void* data, std::size_t size, std::uint64_t seed) {
  std::uint64_t hash = seed;
  for (const auto* at = static_cast<const unsigned char*>(data); size > 0; --size, ++at)
    hash = (hash ^ *at) * 0x100000001b3u;
  return static_cast<std::int64_t>(hash);
}

void Agreement::add(const char* name, const std::string& text) {
  add(name, hash_bytes(text.data(), text.size()));
}

void Agreement::check(const std::function<void()>& own) {
  std::exception_ptr failed;
  try {
    own();
  } catch (...) {
    failed = std::current_exception();
  }
  exchange(failed, true);
}

void Agreement::finish(const std::exception_ptr& failed) { exchange(failed, false); }

void Agreement::exchange(const std::exception_ptr& failed, bool compares) {
  Record mine;
  mine.function = hash_bytes(where_, std::strlen(where_));
  if (failed != nullptr) {
    mine.failed = 1;
    try {
      std::rethrow_exception(failed);
    } catch (const Error& error) {
      mine.kind = static_cast<std::int64_t>(error.kind());
      std::strncpy(mine.text, error.what(), kMostText - 1);
    } catch (const std::exception& error) {
      mine.kind = static_cast<std::int64_t>(ErrorKind::runtime);
      std::strncpy(mine.text, error.what(), kMostText - 1);
    }
  } else if (compares) {
    mine.count = static_cast<std::int64_t>(facts_.size());
    for (std::size_t i = 0; i < facts_.size() && i < kMostFacts; ++i)
      mine.values[i] = facts_[i].value;
  }
  std::vector<Record> all(static_cast<std::size_t>(group_.size()));
  group_.all_gather(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  if (failed != nullptr) std::rethrow_exception(failed);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const Record& other = all[rank];
    if (other.version != kVersion || other.function != mine.function)
      fail(ErrorKind::value, where_, "rank {} calls another function, or another version of it",
           rank);
    if (other.failed != 0)
      throw Error(static_cast<ErrorKind>(other.kind),
                  fmt::format("[{}] rank {}: {}", where_, rank, std::string(other.text)));
  }
  // All ranks find the same difference: the first, against rank 0.
  for (std::size_t i = 0; compares && i < facts_.size(); ++i) {
    for (std::size_t rank = 1; rank < all.size(); ++rank) {
      if (all[rank].count == all[0].count && all[rank].values[i] == all[0].values[i]) continue;
      fail(ErrorKind::value, where_, "ranks disagree about {}: {} on rank 0 and {} on rank {}",
           facts_[i].name, all[0].values[i], all[rank].values[i], rank);
    }
  }
}

void refuse(const char* function, Communicator& group, const std::string& text) {
  try {
    Agreement(function, group).check([&] { throw Error(ErrorKind::runtime, text); });
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): this rank's own error, which it knows
  }
}

}  // namespace quire::context_parallel
