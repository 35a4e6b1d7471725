// Converts runs of keys to bits per row. No SIMD. Kernels layer.
#include "kernels/decode/row_visibility.h"

#include <algorithm>
#include <limits>

#include "kernels/bit_range.h"
#include "kernels/decode/decode.h"
#include "kernels/decode/functions.h"
#include "kernels/kernel_table.h"
#include "kernels/prefill/visible_words.h"

namespace quire::kernels {
namespace {

constexpr int kWordKeys = 64;

void set_bits(uint64_t* words, int begin, int end) {
  for (int word = begin / kWordKeys; word * kWordKeys < end; ++word)
    words[word] |= bits_between(std::max(begin - word * kWordKeys, 0), end - word * kWordKeys);
}

}  // namespace

const int32_t* first_from(const KeyList& list, int64_t key, const int32_t* near) noexcept {
  const int32_t* const end = list.keys + list.count;
  if (near < list.keys || near > end || (near > list.keys && near[-1] >= key))
    return list.from(key);
  if (near != end && *near >= key) return near;
  constexpr ptrdiff_t kStep = 16;
  while (end - near > kStep && near[kStep] < key) near += kStep;
  return std::lower_bound(near, end - near > kStep ? near + kStep : end, key);
}

RowVisibility::RowVisibility(const ForwardCall& call, const QueryRow* rows, int row_count,
                             ScratchLayout& layout)
    : rows_(rows), row_count_(row_count) {
  const auto count = static_cast<size_t>(row_count), words = count * (kTileKeys / kWordKeys);
  words_ = layout.take<uint64_t>(words);
  asked_ = layout.take<uint64_t>(words);
  answers_ = layout.take<uint64_t>(words);
  batches_ = layout.take<int64_t>(count);
  heads_ = layout.take<int64_t>(count);
  queries_ = layout.take<int64_t>(count);
  const TileProgram* mask = call.decode.mask;
  void* scratch = layout.take<char>(mask == nullptr ? 0 : mask->scratch_bytes);
  if (rows == nullptr) return;  // counting
  if (mask != nullptr)
    runner_.emplace(*mask, call.f64 ? *call.table->tile_f64 : *call.table->tile_f32, scratch);
  learn_choices();
}

void RowVisibility::learn_choices() noexcept {
  everything_ = true;
  chooses_ = false;
  for (int i = 0; i < row_count_; ++i) {
    chooses_ |= rows_[i].chosen.is_choice();
    everything_ &= rows_[i].visible.count < 0 && !rows_[i].chosen.is_choice();
  }
  shares_ = chooses_ && !runner_ && std::all_of(rows_, rows_ + row_count_, [&](const auto& row) {
              return row.visible.count < 0 && row.chosen.keys == rows_[0].chosen.keys &&
                     row.chosen.count == rows_[0].chosen.count;
            });
  shared_keys_ = -1;
}

void RowVisibility::turn_to(const QueryRow* rows, const ListPlaces& behind) noexcept {
  rows_ = rows;
  near_ = behind.of[0];
  behind_ = behind;
  learn_choices();
}

int64_t RowVisibility::next_tile(int64_t tile) const noexcept {
  if (everything_) return tile;
  int64_t next = std::numeric_limits<int64_t>::max();
  const KeyList* of = nullptr;  // the list that `at` points into
  const int32_t* at = nullptr;
  for (int i = 0; i < (shares_ ? 1 : row_count_); ++i) {
    int64_t of_row = tile;
    const KeyList& chosen = rows_[i].chosen;
    if (chosen.is_choice()) {
      if (of == nullptr || of->keys != chosen.keys || of->count != chosen.count)
        at = first_from(chosen, tile * kTileKeys, behind_.of[i]);
      of = &chosen;
      if (at == chosen.keys + chosen.count) continue;
      of_row = *at / kTileKeys;
    }
    const KeyRuns& visible = rows_[i].visible;
    if (visible.count >= 0) {
      const KeyRun* run = first_behind(visible, tile * kTileKeys);
      if (run == visible.runs + visible.count) continue;
      of_row = std::max(of_row, run->begin / kTileKeys);
    }
    next = std::min(next, of_row);
    if (next == tile) return tile;
  }
  return next;
}

void RowVisibility::add_runs(int row, int64_t key, int keys) noexcept {
  const KeyRuns& visible = rows_[row].visible;
  if (visible.count < 0) return set_bits(words_ + row * groups_, 0, keys);
  const KeyRun* const end = visible.runs + visible.count;
  for (const KeyRun* run = first_behind(visible, key); run != end; ++run) {
    if (run->begin >= key + keys) break;
    const int from = static_cast<int>(std::max<int64_t>(run->begin - key, 0));
    const int to = static_cast<int>(std::min<int64_t>(run->end - key, keys));
    set_bits((run->full || !runner_ ? words_ : asked_) + row * groups_, from, to);
  }
}

// Only rows that need the program run it: faults of other rows must not be reported.
void RowVisibility::ask_mask(int64_t key, int keys) noexcept {
  TileCoords coords;
  int asking[kManyDecodeRows];
  for (int i = 0; i < row_count_; ++i) {
    const uint64_t* asked = asked_ + i * groups_;
    if (std::none_of(asked, asked + groups_, [](uint64_t word) { return word != 0; })) continue;
    batches_[coords.rows] = rows_[i].b;
    heads_[coords.rows] = rows_[i].h;
    queries_[coords.rows] = rows_[i].q_idx;
    asking[coords.rows++] = i;
  }
  if (coords.rows == 0) return;
  coords.start[static_cast<int>(Coord::kB)] = rows_[0].b;
  coords.list[static_cast<int>(Coord::kB)] = batches_;
  coords.list[static_cast<int>(Coord::kH)] = heads_;
  coords.list[static_cast<int>(Coord::kQ)] = queries_;
  coords.start[static_cast<int>(Coord::kKv)] = key;
  coords.lanes = keys;
  runner_->begin(coords);
  runner_->mask(answers_);
  for (int i = 0; i < coords.rows; ++i)
    for (int g = 0; g < groups_; ++g)
      words_[asking[i] * groups_ + g] |=
          asked_[asking[i] * groups_ + g] & answers_[i * groups_ + g];
}

// Hides what rows see but did not choose.
void RowVisibility::keep_chosen(int64_t key, int keys) noexcept {
  const int32_t* of = nullptr;  // the list these words are for; heads of a group mostly share one
  uint64_t chosen[kTileKeys / kWordKeys] = {};
  for (int i = 0; i < row_count_; ++i) {
    const KeyList& list = rows_[i].chosen;
    if (!list.is_choice()) continue;
    if (i == 0 || list.keys != of || list.count != rows_[i - 1].chosen.count) {
      const int32_t* const end = list.keys + list.count;
      const int32_t* at = first_from(list, key, behind_.of[i]);
      if (i == 0) near_ = at;
      for (int g = 0; g < groups_; ++g) {
        const int64_t word_end = key + std::min((g + 1) * kWordKeys, keys);
        uint64_t word = 0;
        for (; at != end && *at < word_end; ++at)
          word |= uint64_t{1} << (static_cast<uint32_t>(*at) % kWordKeys);  // tiles begin at words
        chosen[g] = word;
      }
      behind_.of[i] = at;
      of = list.keys;
    }
    for (int g = 0; g < groups_; ++g) words_[i * groups_ + g] &= chosen[g];
  }
}

bool RowVisibility::look(int64_t tile, int keys) noexcept {
  groups_ = (keys + kWordKeys - 1) / kWordKeys;
  std::fill(std::begin(any_), std::end(any_), 0);
  if (everything_) {
    all_ = alike_ = true;
    sees_ = ~0u;
    set_bits(any_, 0, keys);
    return true;
  }
  if (shares_) return look_at_shared(tile * kTileKeys, keys);
  std::fill_n(words_, row_count_ * groups_, 0);
  std::fill_n(asked_, row_count_ * groups_, 0);
  const int64_t key = tile * kTileKeys;
  for (int i = 0; i < row_count_; ++i) add_runs(i, key, keys);
  if (runner_) ask_mask(key, keys);
  if (chooses_) keep_chosen(key, keys);
  all_ = alike_ = true;
  sees_ = 0;
  for (int i = 0; i < row_count_; ++i) {
    for (int g = 0; g < groups_; ++g) {
      const uint64_t word = words_[i * groups_ + g];
      any_[g] |= word;
      if (word != 0) sees_ |= 1u << i;
      all_ &= word == bits_between(0, keys - g * kWordKeys);
      alike_ &= word == words_[g];
    }
  }
  return sees_ != 0;
}

// The same for rows that share their choice.
bool RowVisibility::look_at_shared(int64_t key, int keys) noexcept {
  const KeyList& list = rows_[0].chosen;
  const int32_t* const end = list.keys + list.count;
  near_ = first_from(list, key, behind_.of[0]);
  const int32_t* at = near_;
  uint32_t last = ~0u;
  shared_units_ = 0;
  for (const int64_t tile_end = key + keys; at != end && *at < tile_end; ++at) {
    const uint32_t unit = static_cast<uint32_t>(*at) / kUnitKeys;
    shared_units_ += unit != last ? 1 : 0;
    last = unit;
  }
  behind_.of[0] = at;
  shared_keys_ = static_cast<int>(at - near_);
  all_ = shared_keys_ == keys;
  alike_ = true;
  sees_ = shared_keys_ > 0 ? ~0u : 0;
  return shared_keys_ > 0;
}

void RowVisibility::fill() noexcept {
  if (shared_keys_ < 0) return;
  std::fill(std::begin(any_), std::end(any_), 0);
  for (const int32_t* at = near_; at != behind_.of[0]; ++at) {
    const uint32_t place = static_cast<uint32_t>(*at) % kTileKeys;
    any_[place / kWordKeys] |= uint64_t{1} << (place % kWordKeys);
  }
  for (int i = 0; i < row_count_; ++i) std::copy_n(any_, groups_, words_ + i * groups_);
}

}  // namespace quire::kernels
