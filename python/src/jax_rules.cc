// Caches parsed formulas and proved masks of calls from JAX. Python layer.
#include "jax_rules.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "quire/error.h"

namespace quire::python {
namespace {

// Entries of each kind; a model has a handful.
constexpr std::size_t kMostKept = 64;
// Arrays of a mask's rule are compared with their last contents up to this many bytes.
constexpr std::size_t kMostContents = std::size_t{1} << 20;

/// The most recent values by key.
template <class Value>
class Kept {
 public:
  std::optional<Value> find(const std::string& key) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return std::nullopt;
    for (const auto& [known, value] : entries_)
      if (known == key) return value;
    return std::nullopt;
  }
  void keep(std::string key, Value value) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return;
    std::erase_if(entries_, [&](const auto& entry) { return entry.first == key; });
    entries_.emplace_front(std::move(key), std::move(value));
    if (entries_.size() > kMostKept) entries_.pop_back();
  }

 private:
  std::mutex mutex_;  // only tried: a child of fork() may find it locked for ever
  std::deque<std::pair<std::string, Value>> entries_;
};

struct ProvedMask {
  std::string contents;  // of the rule's arrays, one after the other
  BlockMask mask;        // its rule reads memory that may be gone: every call replaces it
};

Kept<Formula>& kept_formulas() {
  static Kept<Formula> kept;
  return kept;
}
Kept<ProvedMask>& kept_masks() {
  static Kept<ProvedMask> kept;
  return kept;
}

std::vector<std::string> split(std::string_view names) {
  std::vector<std::string> found;
  while (!names.empty()) {
    const std::size_t end = std::min(names.find(','), names.size());
    found.emplace_back(names.substr(0, end));
    names.remove_prefix(std::min(end + 1, names.size()));
  }
  return found;
}

// Formulas depend only on dtypes and ranks, masks on shapes as well.
std::string key_of(const JaxRule& rule) {
  std::string key(rule.text);
  key.append("\n").append(rule.names);
  for (const ConstTensorView& one : rule.arrays)
    key.append("\n").append(dtype_name(one.dtype())).append(to_string(one.shape()));
  return key;
}

std::vector<std::string> names_of(const JaxRule& rule) {
  std::vector<std::string> names = split(rule.names);
  if (names.size() != rule.arrays.size()) {
    throw Error(ErrorKind::value, "[quire.jax] a rule names " + std::to_string(names.size()) +
                                      " arrays; got " + std::to_string(rule.arrays.size()));
  }
  return names;
}

Formula parsed(const JaxRule& rule) {
  std::string key = key_of(rule);
  if (auto known = kept_formulas().find(key)) return std::move(*known);
  NamedBuffers buffers;
  const std::vector<std::string> names = names_of(rule);
  for (std::size_t i = 0; i < names.size(); ++i)
    buffers.emplace_back(names[i], Buffer::declare(rule.arrays[i].dtype(), rule.arrays[i].shape(),
                                                   {.name = names[i]}));
  Formula formula = Formula::parse(rule.text, buffers);
  kept_formulas().keep(std::move(key), formula);
  return formula;
}

// nullopt if there is more of it than is worth comparing.
std::optional<std::string> contents_of(std::span<const ConstTensorView> arrays) {
  std::string contents;
  for (const ConstTensorView& one : arrays) {
    const std::size_t bytes = one.numel() * dtype_size(one.dtype());
    if (contents.size() + bytes > kMostContents) return std::nullopt;
    if (bytes > 0) contents.append(static_cast<const char*>(one.data()), bytes);
  }
  return contents;
}

}  // namespace

Formula bound_formula(const JaxRule& rule, std::string_view learns) {
  const std::vector<std::string> names = names_of(rule);
  const Formula formula = parsed(rule);
  std::vector<Buffer> buffers;
  for (const auto& [name, declared] : formula.named_buffers()) {
    const std::size_t place = std::find(names.begin(), names.end(), name) - names.begin();
    const bool wants = place < learns.size() && learns[place] == '1';
    buffers.push_back(Buffer::borrow(rule.arrays[place], {.name = name, .wants_gradient = wants}));
  }
  return formula.with_buffers(std::move(buffers));
}

BlockMask proved_mask(const JaxRule& rule, const JaxMaskSizes& sizes) {
  const MaskMod mod(bound_formula(rule));
  const auto& [batch, heads, q_len, kv_len, block_size] = sizes;
  std::string key = key_of(rule);
  for (const std::int64_t size : {batch, heads, q_len, kv_len, block_size.q, block_size.kv})
    key.append(",").append(std::to_string(size));
  std::optional<std::string> contents = contents_of(rule.arrays);
  if (contents.has_value()) {
    std::optional<ProvedMask> known = kept_masks().find(key);
    if (known.has_value() && known->contents == *contents) {
      known->mask.set_mask_mod(mod);
      return std::move(known->mask);
    }
  }
  BlockMask mask = create_block_mask(mod, batch, heads, q_len, kv_len, {.block_size = block_size});
  if (contents.has_value()) kept_masks().keep(std::move(key), {std::move(*contents), mask});
  return mask;
}

}  // namespace quire::python
