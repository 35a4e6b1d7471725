// TopList: the k best of scores that come one by one, keys ascending: the largest scores, and among
// equal ones the smallest keys. Holds up to a fixed number of candidates in memory that its owner
// provides. Kernels layer.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>

namespace quire::kernels {

template <class T>
struct Candidate {
  T score;
  int32_t key;

  friend bool operator<(const Candidate& a, const Candidate& b) {
    return a.score > b.score || (a.score == b.score && a.key < b.key);
  }
};

/// Candidates that a list of k has room for: the more, the less often they are sifted.
constexpr int64_t top_list_size(int64_t k) { return 2 * k + 64; }

template <class T>
class TopList {
 public:
  TopList() = default;
  /// memory: [top_list_size(k)].
  TopList(Candidate<T>* memory, int64_t k) : items_(memory), k_(k) {}

  /// A score that is NaN is no candidate.
  void add(T score, int32_t key) noexcept {
    if (!(score >= least_) || (is_full_ && score == least_)) return;
    items_[count_++] = {score, key};
    if (count_ == top_list_size(k_)) sift();
  }
  /// Once there are k: what a score must exceed.
  T least() const { return least_; }

  /// The best, k at most, in no order. The list must not be used afterwards.
  int64_t finish() noexcept {
    if (count_ > k_) sift();
    return count_;
  }

 private:
  void sift() noexcept {
    if (k_ > 0) {
      std::nth_element(items_, items_ + k_ - 1, items_ + count_);
      least_ = items_[k_ - 1].score;
    }
    count_ = k_;
    is_full_ = true;
  }

  Candidate<T>* items_ = nullptr;
  int64_t k_ = 0;
  int64_t count_ = 0;
  T least_ = -std::numeric_limits<T>::infinity();
  bool is_full_ = false;
};

}  // namespace quire::kernels
