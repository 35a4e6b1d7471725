// Reads and checks the key_indices of a problem, list by list: shape and dtype, keys that do not
// exist, keys that are listed twice. Plan layer.
#include <algorithm>
#include <bit>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "layout/chosen_keys.h"
#include "layout/query_layout.h"
#include "plan/prepare_problem.h"
#include "quire/error.h"
#include "runtime/fail.h"
#include "tensor/index_view.h"

namespace quire::plan {
namespace {

// Reads the lists of a problem, once.
class IndicesReader {
 public:
  explicit IndicesReader(const AttentionProblem& problem)
      : problem_(problem), view_(*problem.key_indices), numbers_(view_), most_(check_shape()) {}

  std::shared_ptr<const layout::ChosenKeys> read() {
    std::vector<std::int64_t> first{0};
    for (std::int64_t b = 0; b < problem_.batch; ++b)
      first.push_back(first.back() + problem_.queries_of(b));
    const std::int64_t heads = by_head_ ? problem_.q_heads : 1;
    const std::int64_t lists = first.back() * heads;
    auto made = std::make_shared<layout::ChosenKeys>(std::move(first), heads, lists * most_);
    for (std::int64_t b = 0; b < problem_.batch; ++b)
      for (std::int64_t h = 0; h < heads; ++h)
        for (std::int64_t row = 0; row < problem_.queries_of(b); ++row) {
          read_list({b, h, row}, made->keys());
          made->end_list();
        }
    made->finish();
    return made;
  }

 private:
  struct Place {
    std::int64_t b, h, row;
  };

  bool is_packed() const { return problem_.q_shape.rank() == 3; }

  // Returns k.
  std::int64_t check_shape() {
    const char* const where = problem_.function;
    check_indices(where, "key_indices", view_);
    const std::int64_t most = view_.rank() == 0 ? 0 : view_.dim(view_.rank() - 1);
    Shape by_head = problem_.stats_shape(), shared = by_head;
    const int head_axis = is_packed() && problem_.q_order == JaggedOrder::kHeads ? 0 : 1;
    shared.erase(head_axis);
    by_head.push_back(most);
    shared.push_back(most);
    by_head_ = view_.rank() == by_head.rank();
    if (view_.rank() == 0 || view_.shape() != (by_head_ ? by_head : shared)) {
      fail(ErrorKind::value, where, "key_indices must be {}, or {} for each head; got {}",
           text_of(shared), text_of(by_head), to_string(view_.shape()));
    }
    return most;
  }

  static std::string text_of(const Shape& shape) {
    std::string text = to_string(shape);
    return text.substr(0, text.rfind(shape.rank() > 1 ? ',' : '[') + 1) +
           (shape.rank() > 1 ? " k]" : "k]");
  }

  // Where a list begins, in elements.
  std::int64_t offset(const Place& at) const {
    const Shape& steps = view_.strides();
    const auto [batch, row] =
        problem_.queries ? problem_.queries->place(at.b) : layout::QueryPlace{at.b, 0};
    if (!is_packed()) {
      return batch * steps[0] +
             (by_head_ ? at.h * steps[1] + (row + at.row) * steps[2] : (row + at.row) * steps[1]);
    }
    if (!by_head_) return (row + at.row) * steps[0];
    const bool heads_first = problem_.q_order == JaggedOrder::kHeads;
    return (row + at.row) * steps[heads_first ? 1 : 0] + at.h * steps[heads_first ? 0 : 1];
  }

  std::string name(const Place& at) const {
    const std::string head = by_head_ ? ", head " + std::to_string(at.h) : "";
    return (is_packed() ? "sequence " : "batch entry ") + std::to_string(at.b) + head + ", query " +
           std::to_string(at.row);
  }

  void read_list(const Place& at, std::vector<std::int32_t>& to) {
    const std::int64_t first = offset(at), step = view_.strides()[view_.rank() - 1];
    const std::int64_t length = problem_.keys_of(at.b);
    if (length > std::numeric_limits<std::int32_t>::max())
      fail(ErrorKind::value, problem_.function, "key_indices are for up to 2147483647 keys; got {}",
           length);
    const std::size_t begin = to.size();
    bool ascends = true;
    std::int64_t last = -1;
    for (std::int64_t i = 0; i < most_; ++i) {
      const std::int64_t key = numbers_[first + i * step];
      if (key == -1) continue;
      if (key < 0 || key >= length) {
        fail(ErrorKind::value, problem_.function,
             "key_indices of {} list key {} at place {}; there are {} keys, and -1 stands for none",
             name(at), key, i, length);
      }
      ascends &= key > last;
      last = key;
      to.push_back(static_cast<std::int32_t>(key));
    }
    if (!ascends) sort(at, {to.begin() + static_cast<std::ptrdiff_t>(begin), to.end()}, length);
  }

  // Uses a bit per key where that is not much more memory than the list.
  void sort(const Place& at, std::span<std::int32_t> list, std::int64_t length) {
    constexpr std::int64_t kWord = 64;
    if (length > static_cast<std::int64_t>(list.size()) * kWord * 4) {
      std::sort(list.begin(), list.end());
      const auto twice = std::adjacent_find(list.begin(), list.end());
      if (twice != list.end()) fail_twice(at, *twice);
      return;
    }
    words_.assign(static_cast<std::size_t>((length + kWord - 1) / kWord), 0);
    for (const std::int32_t key : list) {
      std::uint64_t& word = words_[static_cast<std::size_t>(key / kWord)];
      const std::uint64_t bit = std::uint64_t{1} << (key % kWord);
      if ((word & bit) != 0) fail_twice(at, key);
      word |= bit;
    }
    auto to = list.begin();
    for (std::size_t i = 0; i < words_.size(); ++i)
      for (std::uint64_t word = words_[i]; word != 0; word &= word - 1)
        *to++ = static_cast<std::int32_t>(static_cast<std::int64_t>(i) * kWord +
                                          std::countr_zero(word));
  }

  [[noreturn]] void fail_twice(const Place& at, std::int32_t key) const {
    fail(ErrorKind::value, problem_.function, "key_indices of {} list key {} twice", name(at), key);
  }

  const AttentionProblem& problem_;
  const ConstTensorView& view_;
  IndexView numbers_;
  bool by_head_ = false;
  std::int64_t most_;
  std::vector<std::uint64_t> words_;
};

}  // namespace

void read_key_indices(AttentionProblem& problem) {
  if (!problem.key_indices.has_value()) return;
  problem.chosen = IndicesReader(problem).read();
  problem.key_indices.reset();
}

}  // namespace quire::plan
