// Lookup of names, and the edit distance behind "did you mean". Formula layer.
#include "formula/text/names.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "formula/op_table.h"

namespace quire::formula {
namespace {

constexpr std::array<std::string_view, 9> kWords = {"and",  "or",    "not", "True", "False",
                                                    "true", "false", "inf", "nan"};

constexpr std::array<Op, 4> kSpecialCalls = {Op::kWhere, Op::kClamp, Op::kSum, Op::kDot};

// Other names that people use for the arguments.
constexpr std::array<std::pair<std::string_view, std::string_view>, 8> kOtherNames = {
    {{"q", "q_idx"},
     {"kv", "kv_idx"},
     {"k", "kv_idx"},
     {"k_idx", "kv_idx"},
     {"batch", "b"},
     {"head", "h"},
     {"s", "score"},
     {"infinity", "inf"}}};

constexpr std::size_t kLongestCompared = 40;

// Insertions, deletions, replacements and swaps of neighbours that turn a into b.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  using Row = std::array<std::size_t, kLongestCompared + 1>;
  Row before_last{}, last{}, row{};
  for (std::size_t j = 0; j <= b.size(); ++j) last[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    before_last = std::exchange(last, row);
  }
  return last[b.size()];
}

}  // namespace

bool is_identifier(std::string_view text) {
  const auto is_letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
  };
  return !text.empty() && is_letter(text[0]) && std::all_of(text.begin(), text.end(), [&](char c) {
    return is_letter(c) || (c >= '0' && c <= '9');
  });
}

bool is_free_name(std::string_view name) {
  return is_identifier(name) && !find_leaf(name) && !find_call(name) &&
         std::find(kWords.begin(), kWords.end(), name) == kWords.end();
}

std::optional<Op> find_leaf(std::string_view name) {
  for (const OpInfo& one : kOps)
    if (one.rule == TypeRule::kLeaf && one.name == name) return one.op;
  return std::nullopt;
}

std::optional<Op> find_call(std::string_view name) {
  for (const Op op : kSpecialCalls)
    if (op_info(op).name == name) return op;
  return name == kPlainPower ? Op::kPow : find_function(name);
}

std::string_view nearest_name(std::string_view name, std::span<const std::string_view> free) {
  for (const auto& [other, meant] : kOtherNames)
    if (other == name) return meant;
  if (name.size() > kLongestCompared) return {};
  std::string_view best;
  std::size_t best_distance =
      name.size() <= 2 ? 1 : 1 + name.size() / 4;  // largest distance that counts as close
  const auto compare = [&](std::string_view candidate) {
    if (candidate.size() > kLongestCompared || candidate.size() > name.size() + best_distance ||
        name.size() > candidate.size() + best_distance)
      return;
    const std::size_t distance = edit_distance(name, candidate);
    // Names that have nothing in common are not close, however short.
    if (distance >= std::max(name.size(), candidate.size())) return;
    if (distance < best_distance || (best.empty() && distance == best_distance)) {
      best = candidate;
      best_distance = distance;
    }
  };
  for (const std::string_view candidate : free) compare(candidate);
  for (const OpInfo& one : kOps)
    if (find_leaf(one.name) || find_call(one.name)) compare(one.name);
  for (const std::string_view word : kWords) compare(word);
  return best;
}

}  // namespace quire::formula
