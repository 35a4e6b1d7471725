// Recognises converted calls: rewrites their rules with formula/logical_keys.h and reads their
// pages from the block mask's lists and the table. Paged layer.
#include "paged/paged_recognition.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "formula/logical_keys.h"
#include "layout/paged_layout.h"
#include "mask/mask_grid.h"
#include "quire/mods.h"
#include "runtime/ceil_div.h"

namespace quire::paged {
namespace {

using formula::PagePattern;

// The rules of a call on the sequences' own keys.
struct LogicalRules {
  PagePattern pattern;
  std::optional<ScoreMod> score;
  MaskMod mask;
  bool hidden_by_mask = false, hidden_by_score = false;  // slots of unused pages
  std::optional<Buffer> bounds = {};                     // keys from bounds[b] on are hidden
};

// A score mod that gives -inf from some length on hides keys like a mask. The length is moved to
// the mask, so that the remaining score mod (or none) is that of the dense call: bits depend on
// whether there is a score mod.
void move_bound_to_mask(LogicalRules& rules, Precision precision) {
  const std::optional<Buffer> bound = formula::find_key_bound(rules.score->formula(), precision);
  if (!bound.has_value()) return;
  if (!rules.bounds.has_value()) {
    rules.bounds = bound;
    const Buffer& lengths = *bound;
    rules.mask = rules.mask & MaskMod([&](auto b, auto, auto, auto kv) { return kv < lengths[b]; });
  }
  if (formula::is_same_buffer(*rules.bounds, *bound))
    rules.score = ScoreMod(formula::within_key_bound(rules.score->formula(), *bound));
}

std::optional<LogicalRules> logical_rules(const AttentionProblem& problem) {
  const Formula* const mask =
      problem.block_mask.has_value() ? &problem.block_mask->mask_mod().formula() : nullptr;
  const Formula* const score =
      problem.score_mod.has_value() ? &problem.score_mod->formula() : nullptr;
  std::optional<PagePattern> pattern;
  if (mask != nullptr) pattern = formula::find_page_pattern(*mask);
  if (!pattern.has_value() && score != nullptr) pattern = formula::find_page_pattern(*score);
  if (!pattern.has_value()) return std::nullopt;
  LogicalRules rules{.pattern = *pattern, .score = {}, .mask = noop_mask()};
  const Precision precision =
      problem.compute_type() == DType::f64 ? Precision::kF64 : Precision::kF32;
  if (mask != nullptr) {
    const std::optional<Formula> logical = formula::to_logical(*mask, *pattern);
    if (!logical.has_value()) return std::nullopt;
    rules.mask = MaskMod(*logical);
    rules.hidden_by_mask =
        formula::is_hidden(formula::for_dead_pages(*mask, *pattern), Precision::kF32);
    rules.bounds = formula::find_key_bound(*logical, Precision::kF32);
  }
  if (score != nullptr) {
    const std::optional<Formula> logical = formula::to_logical(*score, *pattern);
    if (!logical.has_value()) return std::nullopt;
    rules.score = ScoreMod(*logical);
    rules.hidden_by_score =
        formula::is_hidden(formula::for_dead_pages(*score, *pattern), precision);
    move_bound_to_mask(rules, precision);
  }
  return rules;
}

std::int64_t entry_of(const Buffer& table, std::int64_t row, std::int64_t page) {
  const ConstTensorView& view = table.view();
  if (view.dtype() == DType::i64) {
    return static_cast<const std::int64_t*>(
        view.data())[row * view.strides()[0] + page * view.strides()[1]];
  }
  return view.load_int({row, page});
}

// Replaces the pool's pages in each row of a block mask by pages of the row's sequence.
class PageWalk {
 public:
  PageWalk(const AttentionProblem& problem, const LogicalRules& rules)
      : rules_(rules),
        size_(rules.pattern.page_size),
        pool_(problem.kv_len / size_),
        batch_(problem.batch),
        table_(problem.batch),
        call_{.given = problem,
              .problem = problem,
              .page_size = size_,
              .table = rules.pattern.table,
              .row_list = rules.pattern.row_list,
              .bounds = rules.bounds} {
    if (problem.block_mask.has_value()) mask_ = &*problem.block_mask;
  }

  std::optional<PagedCall> walk() {
    if (!find_rows()) return std::nullopt;
    const std::int64_t heads = mask_ == nullptr || heads_are_equal() ? 1 : mask_->heads();
    const std::int64_t rows = mask_ == nullptr ? 1 : mask_->q_blocks();
    mask::BlockRowsBuilder builder(batch_, heads, rows);
    for (std::int64_t b = 0; b < batch_; ++b) {
      for (std::int64_t h = 0; h < heads; ++h) {
        for (std::int64_t row = 0; row < rows; ++row) {
          if (!read_row(b, h, row)) return std::nullopt;
          builder.add_row(runs_);
        }
      }
    }
    finish(builder.finish(), heads, rows);
    return std::move(call_);
  }

 private:
  bool find_rows();
  bool heads_are_equal() const;
  bool read_row(std::int64_t b, std::int64_t h, std::int64_t row);
  bool read_pages(std::int64_t b, std::int64_t begin, std::int64_t end, BlockKind kind);
  void finish(mask::BlockRows&& rows, std::int64_t heads, std::int64_t q_blocks);

  const LogicalRules& rules_;
  const BlockMask* mask_ = nullptr;
  std::int64_t size_, pool_, batch_;
  std::vector<std::vector<std::int64_t>> table_;            // by sequence, logical page to page
  std::vector<std::pair<std::int64_t, BlockKind>> blocks_;  // of a row, logical
  mask::RunList runs_;
  PagedCall call_;
};

// Finds the table's row and the length of each sequence.
bool PageWalk::find_rows() {
  const auto has_data = [](const std::optional<Buffer>& buffer) {
    return !buffer.has_value() || buffer->has_data();
  };
  if (!has_data(rules_.pattern.table) || !has_data(rules_.pattern.row_list)) return false;
  const PagePattern& pattern = rules_.pattern;
  const std::int64_t count = pattern.table.shape()[0];
  if (pool_ > pattern.table.shape()[1]) return false;
  for (std::int64_t b = 0; b < batch_; ++b) {
    std::int64_t row = pattern.row.value_or(b);
    if (pattern.row_list.has_value()) {
      if (b >= pattern.row_list->shape()[0]) return false;
      row = pattern.row_list->view().load_int({b});
    }
    if (row < 0) row += count;
    if (row < 0 || row >= count) return false;
    call_.rows.push_back(row);
    if (!rules_.bounds.has_value()) continue;
    if (b >= rules_.bounds->shape()[0]) return false;
    call_.bound.push_back(rules_.bounds->view().load_int({b}));
  }
  return true;
}

bool PageWalk::heads_are_equal() const {
  for (std::int64_t b = 0; b < batch_; ++b) {
    for (std::int64_t h = 1; h < mask_->heads(); ++h)
      if (mask_->plane(b, h) != mask_->plane(b, 0)) return false;
  }
  return true;
}

bool PageWalk::read_pages(std::int64_t b, std::int64_t begin, std::int64_t end, BlockKind kind) {
  const bool hides_dead =
      rules_.hidden_by_score || (kind == BlockKind::kPartial && rules_.hidden_by_mask);
  std::vector<std::int64_t>& table = table_[b];
  const std::int64_t row = call_.rows[b];
  const std::int64_t bound = call_.bound.empty() ? pool_ * size_ : call_.bound[b];
  for (std::int64_t page = begin; page < end; ++page) {
    const std::int64_t logical = entry_of(rules_.pattern.table, row, page);
    if (logical < 0 && !hides_dead) return false;
    if (logical >= pool_) return false;  // not a table of this pool
    if (logical < 0) {
      call_.entries.push_back({row, page, logical});
      continue;
    }
    if (logical >= std::ssize(table)) table.resize(logical + 1, -1);
    std::int64_t& known = table[logical];
    if (known != -1 && known != page) return false;
    if (known == -1) call_.entries.push_back({row, page, logical});
    known = page;
    // A page listed as full may have unused slots: the rule decides about those.
    const std::int64_t first = logical * size_;
    if (first >= bound) continue;
    blocks_.emplace_back(logical, first + size_ > bound ? BlockKind::kPartial : kind);
  }
  return true;
}

bool PageWalk::read_row(std::int64_t b, std::int64_t h, std::int64_t row) {
  blocks_.clear();
  runs_.clear();
  if (mask_ == nullptr) {
    if (!read_pages(b, 0, pool_, BlockKind::kPartial)) return false;
  } else {
    const std::int64_t per_block = mask_->block_size().kv / size_;
    for (const BlockRun& run : mask_->runs(b, h, row)) {
      const std::int64_t end = std::min(run.end() * per_block, pool_);
      if (!read_pages(b, run.begin * per_block, end, run.kind)) return false;
    }
  }
  if (!std::ranges::is_sorted(blocks_)) std::ranges::sort(blocks_);
  for (const auto& [block, kind] : blocks_) {
    if (!runs_.empty() && runs_.back().end() > block) return false;  // listed twice
    mask::append_run(runs_, block, block + 1, kind);
  }
  return true;
}

void PageWalk::finish(mask::BlockRows&& rows, std::int64_t heads, std::int64_t q_blocks) {
  std::vector<std::int64_t> pages, lengths;  // of each sequence; -1 for pages that are not visible
  std::int64_t longest = 0;
  for (std::size_t b = 0; b < table_.size(); ++b) {
    auto& table = table_[b];
    if (!call_.bound.empty()) {
      const std::int64_t keys = std::max<std::int64_t>(call_.bound[b], 0);
      const std::int64_t used = ceil_div(keys, size_);
      if (used < std::ssize(table)) table.resize(used);
    }
    lengths.push_back(std::ssize(table) * size_);
    pages.insert(pages.end(), table.begin(), table.end());
    longest = std::max(longest, lengths.back());
  }
  AttentionProblem& problem = call_.problem;
  const std::int64_t q_size =
      mask_ == nullptr ? std::max<std::int64_t>(problem.q_len, 1) : mask_->block_size().q;
  const mask::BlockGrid grid{mask_ == nullptr ? 0 : mask_->q_begin(), problem.q_len, longest,
                             BlockSize(q_size, size_)};
  std::shared_ptr<mask::BlockMaskData> data = mask::make_data(grid, batch_, heads);
  data->q_blocks = q_blocks;
  data->chosen_by_data = true;
  data->mask_mod = rules_.mask;
  data->rows = std::make_shared<const mask::BlockRows>(std::move(rows));
  problem.block_mask = BlockMask(std::move(data));
  problem.score_mod = rules_.score;
  problem.kv_len = longest;
  problem.layout = std::make_shared<layout::PagedLayout>(size_, std::move(pages), lengths, true);
}

}  // namespace

bool PagedCall::is_unchanged() const {
  if (row_list.has_value()) {
    const std::int64_t count = table.shape()[0];
    for (std::int64_t b = 0; b < std::ssize(rows); ++b) {
      const std::int64_t row = row_list->view().load_int({b});
      if ((row < 0 ? row + count : row) != rows[b]) return false;
    }
  }
  for (std::int64_t b = 0; b < std::ssize(bound); ++b)
    if (bounds->view().load_int({b}) != bound[b]) return false;
  return std::ranges::all_of(entries, [&](const PageEntry& entry) {
    return entry_of(table, entry.row, entry.page) == entry.value;
  });
}

std::optional<PagedCall> recognise_paged(const AttentionProblem& problem) {
  const std::optional<ScoreMod>& score = problem.score_mod;
  const BlockMasks& mask = problem.block_mask;
  const auto has_pages = [](const auto& mod) { return formula::reads_page_table(mod.formula()); };
  // These refer to slots of the pool.
  if (problem.chosen != nullptr || problem.return_aux.key_weights) return std::nullopt;
  if (problem.layout != nullptr || problem.kv_batch != 1 || mask.is_per_sequence())
    return std::nullopt;
  if (!(score && has_pages(*score)) && !(mask && has_pages(mask->mask_mod()))) return std::nullopt;
  const std::optional<LogicalRules> rules = logical_rules(problem);
  if (!rules.has_value()) return std::nullopt;
  const std::int64_t size = rules->pattern.page_size;
  if (problem.kv_len % size != 0 || (mask && mask->block_size().kv % size != 0))
    return std::nullopt;
  return PageWalk(problem, *rules).walk();
}

}  // namespace quire::paged
