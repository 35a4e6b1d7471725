// Agreement: before anything is sent, ranks exchange what they were asked to do, and afterwards
// whether it succeeded. So a mistake on one rank, or different arguments, is an error on every
// rank, and no rank waits for a message that will never come. Context_parallel layer.
#pragma once
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "quire/communicator.h"

namespace quire::context_parallel {

class Agreement {
 public:
  /// `where`: the function that was called, in texts of errors.
  Agreement(const char* where, Communicator& group) : where_(where), group_(group) {}

  /// A value that must be equal on all ranks. Call in the same order everywhere.
  void add(const char* name, std::int64_t value) { facts_.push_back({name, value}); }
  void add(const char* name, const std::string& text);

  /// Runs this rank's own checks, which add() facts; what they throw is reported to the others.
  /// Returns if all ranks passed their checks and agree; otherwise throws Error on every rank, its
  /// own one where a check threw.
  void check(const std::function<void()>& own);
  /// The same at the end of a call: `failed` is what went wrong here, or null.
  void finish(const std::exception_ptr& failed);

 private:
  struct Fact {
    const char* name;
    std::int64_t value;
  };
  void exchange(const std::exception_ptr& failed, bool compares);

  const char* where_;
  Communicator& group_;
  std::vector<Fact> facts_;
};

/// FNV-1a.
std::int64_t hash_bytes(const void* data, std::size_t size,
                        std::uint64_t seed = 0xcbf29ce484222325u);

}  // namespace quire::context_parallel
