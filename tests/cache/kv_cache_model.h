// A KVCache beside a model of it that keeps plain vectors: one number per token, from which its
// rows follow. Random operations are done on both and compared. Tests only.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "quire/error.h"
#include "quire/kv_cache.h"
#include "quire/tensor.h"
#include "tests/cache/kv_cache_invariants.h"
#include "tests/cache/kv_cache_model_rows.h"

namespace quire::testing {

struct ModelSequence {
  SequenceId handle;
  std::uint64_t salt = 0;
  std::int64_t begin = 0;
  std::vector<ModelToken> tokens;
};

class ModelledCache {
 public:
  explicit ModelledCache(const KVCacheOptions& options, std::uint64_t seed)
      : cache(options), random_(seed) {}

  KVCache cache;
  std::vector<ModelSequence> live;
  std::vector<SequenceId> stale;
  std::int64_t operations = 0, failures = 0, prefix_hits = 0;

  std::uint64_t below(std::uint64_t n) { return random_() % n; }

  // One random operation, then everything compared.
  void step() {
    ++operations;
    switch (below(18)) {
      case 0:
        create();
        break;
      case 1:
      case 2:
        create_with_prefix();
        break;
      case 3:
        fork();
        break;
      case 4:
        release();
        break;
      case 5:
        truncate();
        break;
      case 6:
        release_before();
        break;
      case 7:
        reserve();
        break;
      case 8:
        save_and_load();
        break;
      case 9:
        misuse();
        break;
      default:
        append();
    }
    compare();
  }

  void release_all() {
    while (!live.empty()) release();
    compare();
    EXPECT_EQ(cache.stats().used_pages, 0);
  }

 private:
  static ModelToken known_token(const ModelSequence& sequence, std::int64_t id) {
    const std::uint64_t before =
        sequence.tokens.empty() ? mix(sequence.salt, 77) : sequence.tokens.back().number;
    return {id, mix(before, static_cast<std::uint64_t>(id)), true};
  }
  ModelToken next_token(const ModelSequence& sequence, bool with_id) {
    const auto id = static_cast<std::int64_t>(below(3));
    if (with_id && (sequence.tokens.empty() || sequence.tokens.back().has_id))
      return known_token(sequence, id);
    return {id, random_(), false};
  }

  ModelSequence& any() { return live[below(live.size())]; }

  void create() {
    const std::uint64_t salt = below(2);
    live.push_back({cache.create(salt), salt, 0, {}});
  }

  // Ids of a live sequence, or random ones, with a random salt.
  void create_with_prefix() {
    ModelSequence made;
    made.salt = below(2);
    std::vector<std::int64_t> ids;
    if (!live.empty() && below(4) != 0) {
      for (const ModelToken& token : any().tokens) ids.push_back(token.id);
    }
    const std::uint64_t more = below(8);
    for (std::uint64_t i = 0; i < more; ++i) ids.push_back(static_cast<std::int64_t>(below(3)));
    const std::int64_t searched = searched_prefix(ids, made.salt);
    const std::int64_t promised = cache.cached_prefix(ids, made.salt);
    const CreatedSequence created = cache.create_with_prefix(ids, made.salt);
    EXPECT_EQ(created.found, promised);
    EXPECT_EQ(created.found % cache.options().page_size, 0);
    EXPECT_EQ(created.found, searched);
    prefix_hits += created.found > 0;
    made.handle = created.sequence;
    for (std::int64_t i = 0; i < created.found; ++i)
      made.tokens.push_back(known_token(made, ids[static_cast<std::size_t>(i)]));
    live.push_back(made);
  }

  // What the books say is there, by looking at every page.
  std::int64_t searched_prefix(const std::vector<std::int64_t>& ids, std::uint64_t salt) const {
    const cache::PagePool& pool = cache.state().pool;
    const std::int64_t page_size = cache.options().page_size;
    std::uint64_t parent = 0;
    std::int64_t found = 0;
    while (found + page_size <= std::ssize(ids)) {
      const auto wanted = std::span(ids).subspan(static_cast<std::size_t>(found),
                                                 static_cast<std::size_t>(page_size));
      std::vector<std::uint64_t> hits;
      for (std::int32_t id = 0; id < std::ssize(pool.pages()); ++id) {
        const cache::Page& page = pool[id];
        if (page.serial != 0 && page.parent == parent && page.salt == salt &&
            std::ranges::equal(pool.index().ids(id), wanted))
          hits.push_back(page.serial);
      }
      EXPECT_LE(hits.size(), 1u) << "two pages can be found for the same ids";
      if (hits.empty()) break;
      parent = hits.front();
      found += page_size;
    }
    return found;
  }

  void fork() {
    if (live.empty()) return;
    const ModelSequence parent = any();
    const auto length = std::ssize(parent.tokens);
    const std::int64_t at =
        parent.begin +
        static_cast<std::int64_t>(below(static_cast<std::uint64_t>(length - parent.begin) + 1));
    ModelSequence child = parent;
    child.handle = at == length ? cache.fork(parent.handle) : cache.fork(parent.handle, at);
    child.tokens.resize(static_cast<std::size_t>(at));
    live.push_back(child);
  }

  void release() {
    if (live.empty()) return;
    const std::size_t which = below(live.size());
    cache.release(live[which].handle);
    stale.push_back(live[which].handle);
    live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
  }

  void truncate() {
    if (live.empty()) return;
    ModelSequence& one = any();
    const std::int64_t length =
        one.begin + static_cast<std::int64_t>(
                        below(static_cast<std::uint64_t>(std::ssize(one.tokens) - one.begin) + 1));
    cache.truncate(one.handle, length);
    one.tokens.resize(static_cast<std::size_t>(length));
  }

  void release_before() {
    if (live.empty() || below(3) != 0) return;
    ModelSequence& one = any();
    const auto position = static_cast<std::int64_t>(below(one.tokens.size() + 1));
    cache.release_before(one.handle, position);
    const std::int64_t page_size = cache.options().page_size;
    one.begin = std::max(one.begin, position / page_size * page_size);
  }

  std::vector<std::size_t> some_sequences() {
    std::vector<std::size_t> which(live.size());
    for (std::size_t i = 0; i < which.size(); ++i) which[i] = i;
    std::ranges::shuffle(which, random_);
    which.resize(below(which.size() + 1));
    return which;
  }

  // Pages that appending to these takes, by doing it with counts of holders.
  std::int64_t simulate(const std::vector<std::size_t>& which,
                        const std::vector<std::int64_t>& counts) const {
    std::map<std::int32_t, int> holders;
    for (const cache::Sequence& one : cache.state().sequences)
      for (const std::int32_t page : one.pages) ++holders[page];
    std::int64_t taken = 0;
    for (std::size_t i = 0; i < which.size(); ++i) {
      const cache::Sequence& one = cache.state().sequences[live[which[i]].handle.slot];
      if (counts[i] == 0) continue;
      const std::int64_t page_size = cache.options().page_size;
      if (one.length % page_size != 0) {
        int& tail = holders[one.pages[static_cast<std::size_t>(one.length / page_size)]];
        if (tail > 1) --tail, ++taken;
      }
      for (std::int64_t have = std::ssize(one.pages); have * page_size < one.length + counts[i];)
        ++have, ++taken;
    }
    return taken;
  }

  void reserve() {
    const std::vector<std::size_t> which = some_sequences();
    std::vector<NewTokens> step;
    std::vector<std::int64_t> counts;
    for (const std::size_t i : which) {
      counts.push_back(static_cast<std::int64_t>(below(9)));
      step.push_back({live[i].handle, counts.back()});
    }
    const bool fits =
        simulate(which, counts) <= cache.stats().free_pages + cache.stats().cached_pages;
    EXPECT_EQ(cache.can_reserve(step), fits);
    attempt(fits, [&] { cache.reserve(step); });
    if (!fits) return;
    for (std::size_t i = 0; i < which.size(); ++i) {
      EXPECT_EQ(simulate({which[i]}, {counts[i]}), 0);
      EXPECT_TRUE(cache.can_reserve(live[which[i]].handle, counts[i]));
    }
  }

  // Succeeds exactly if `fits`; otherwise nothing changes.
  template <class Call>
  void attempt(bool fits, const Call& call) {
    std::optional<CacheSnapshot> before;
    if (!fits) before.emplace(cache);
    try {
      call();
      EXPECT_TRUE(fits);
    } catch (const Error& error) {
      EXPECT_FALSE(fits) << error.what();
      EXPECT_EQ(error.kind(), ErrorKind::runtime);
      ++failures;
      if (before) {
        EXPECT_TRUE(*before == CacheSnapshot(cache));
      }
    }
  }

  void append() {
    const std::vector<std::size_t> which = some_sequences();
    std::vector<std::int64_t> counts;
    std::vector<std::vector<std::int64_t>> ids(which.size());
    std::vector<std::vector<ModelToken>> tokens(which.size());
    std::vector<NewTokens> step;
    const bool decode = below(2) == 0;
    for (std::size_t i = 0; i < which.size(); ++i) {
      counts.push_back(decode ? 1 : static_cast<std::int64_t>(below(12)));
      const bool with_ids = below(8) != 0;
      ModelSequence copy = live[which[i]];
      for (std::int64_t n = 0; n < counts[i]; ++n) {
        tokens[i].push_back(next_token(copy, with_ids));
        copy.tokens.push_back(tokens[i].back());
        if (with_ids) ids[i].push_back(tokens[i].back().id);
      }
      step.push_back({live[which[i]].handle, counts[i], ids[i]});
    }
    const bool fits =
        simulate(which, counts) <= cache.stats().free_pages + cache.stats().cached_pages;
    EXPECT_EQ(cache.can_reserve(step), fits);
    std::vector<ModelToken> all;
    for (const auto& some : tokens) all.insert(all.end(), some.begin(), some.end());
    const Tensor k = rows_of(all, cache.options(), cache.options().head_dim, 0);
    const Tensor v = rows_of(all, cache.options(), cache.options().v_head_dim, kValues);
    const bool at_once = below(2) == 0;
    attempt(fits, [&] {
      if (at_once) {
        cache.append(step, k, v);
        return;
      }
      cache.append(step);
      for (std::int64_t layer = 0; layer < cache.options().layers; ++layer)
        cache.write(layer, step, k.view().select(0, layer), v.view().select(0, layer));
    });
    if (!fits) return;
    for (std::size_t i = 0; i < which.size(); ++i) {
      auto& have = live[which[i]].tokens;
      have.insert(have.end(), tokens[i].begin(), tokens[i].end());
    }
  }

  void save_and_load() {
    if (live.empty()) return;
    ModelSequence copy = any();
    const std::vector<std::byte> bytes = cache.save(copy.handle);
    copy.salt = below(4) == 0 ? 1 - copy.salt : copy.salt;
    // Under another salt its rows are not what the ids say: as from a file that was tampered with.
    if (copy.salt != live_salt(copy.handle)) return;
    const std::int64_t page_size = cache.options().page_size;
    const std::int64_t needed =
        (std::ssize(copy.tokens) + page_size - 1) / page_size - copy.begin / page_size;
    const bool fits = needed <= cache.stats().free_pages + cache.stats().cached_pages;
    attempt(fits, [&] { copy.handle = cache.load(bytes, copy.salt); });
    if (!fits) return;
    if (copy.begin > 0)
      for (ModelToken& token : copy.tokens) token.has_id = false;
    live.push_back(copy);
  }

  std::uint64_t live_salt(SequenceId handle) const {
    return std::ranges::find(live, handle, &ModelSequence::handle)->salt;
  }

  // Everything that is refused changes nothing.
  void misuse() {
    const CacheSnapshot before(cache);
    const auto refused = [&](const auto& call) {
      try {
        call();
        ADD_FAILURE() << "accepted";
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::value) << error.what();
      }
    };
    if (!stale.empty()) {
      const SequenceId old = stale[below(stale.size())];
      EXPECT_FALSE(cache.contains(old));
      refused([&] { cache.release(old); });
      refused([&] { cache.fork(old); });
      refused([&] { cache.view(old); });
      if (!live.empty()) {
        const NewTokens step[] = {{any().handle, 3}, {old, 1}};
        refused([&] { cache.append(step); });
        refused([&] { cache.reserve(step); });
      }
    }
    if (!live.empty()) {
      const ModelSequence& one = any();
      const NewTokens twice[] = {{one.handle, 1}, {one.handle, 1}};
      refused([&] { cache.append(twice); });
      refused([&] { cache.can_reserve(twice); });
      refused([&] { cache.truncate(one.handle, std::ssize(one.tokens) + 1); });
      refused([&] { cache.fork(one.handle, -1); });
      if (one.begin > 0) refused([&] { cache.truncate(one.handle, one.begin - 1); });
      if (!one.tokens.empty()) {
        const NewTokens last[] = {{one.handle, 1}};
        const Tensor wrong({1, cache.options().kv_heads, cache.options().head_dim + 1}, DType::f32);
        refused([&] { cache.write(0, last, wrong, wrong); });
      }
      std::vector<std::byte> bytes = cache.save(one.handle);
      bytes[below(bytes.size())] ^= std::byte{1};
      refused([&] { cache.load(bytes, one.salt); });
    }
    EXPECT_TRUE(before == CacheSnapshot(cache));
  }

  void compare() {
    ASSERT_EQ(broken_invariant(cache), "");
    std::int64_t tokens = 0;
    for (const ModelSequence& one : live) {
      const SequenceView view = cache.view(one.handle);
      ASSERT_EQ(view.length, std::ssize(one.tokens));
      ASSERT_EQ(view.begin, one.begin);
      tokens += view.length - view.begin;
      compare_rows(cache, view, one.tokens);
    }
    EXPECT_EQ(cache.stats().live_tokens, tokens);
    EXPECT_EQ(cache.stats().sequences, std::ssize(live));
  }

  std::mt19937_64 random_;
};

}  // namespace quire::testing
