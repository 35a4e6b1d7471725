// A KVCache beside a model of it that keeps plain vectors: one number per token, from which its
// rows follow. Random operations are done on both and compared. Tests only.
#pragma once
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
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

// Positions that were released in a group of layers.
struct ModelHole {
  std::int64_t begin = 0, end = 0;

  bool has(std::int64_t position) const { return position >= begin && position < end; }
  bool may_end_at(std::int64_t position) const {
    return begin == end || position >= end || (begin > 0 && position <= begin);
  }
  // Whether another gap joins this one.
  bool joins(std::int64_t from, std::int64_t to) const {
    return begin == end || (to >= begin && from <= end);
  }
  void add(std::int64_t from, std::int64_t to) {
    if (from >= to || !joins(from, to)) return;
    begin = begin == end ? from : std::min(begin, from);
    end = std::max(end, to);
  }
};

struct ModelSequence {
  SequenceId handle;
  std::uint64_t salt = 0;
  std::vector<ModelHole> holes;  // of each group
  std::int64_t committed = 0;
  std::vector<ModelToken> tokens;

  std::int64_t length() const { return std::ssize(tokens); }
  bool may_end_at(std::int64_t position) const {
    return std::ranges::all_of(holes, [&](const ModelHole& h) { return h.may_end_at(position); });
  }
  void cut(std::int64_t length) {
    tokens.resize(static_cast<std::size_t>(length));
    committed = std::min(committed, length);
    for (ModelHole& hole : holes)
      if (length < hole.end) hole = {};
  }
};

class ModelledCache {
 public:
  explicit ModelledCache(const KVCacheOptions& options, std::uint64_t seed)
      : cache(options), random_(seed), other_(options), foreign_(other_.create()) {
    set_any_scales(cache);
  }

  KVCache cache;
  std::vector<ModelSequence> live;
  std::vector<SequenceId> stale;
  std::int64_t operations = 0, failures = 0, prefix_hits = 0;

  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  std::int64_t up_to(std::int64_t n) {
    return static_cast<std::int64_t>(below(static_cast<std::uint64_t>(n) + 1));
  }

  // One random operation, then everything compared.
  void step() {
    ++operations;
    switch (below(24)) {
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
        release_some();
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
      case 10:
      case 11:
        keep();
        break;
      case 12:
        commit();
        break;
      case 13:
        give_up();
        break;
      case 14:
        save_and_load_all();
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
  std::int64_t page_size() const { return cache.options().page_size; }
  std::size_t groups() const { return cache.groups().size(); }

  static ModelToken true_token(const ModelSequence& sequence, std::int64_t id) {
    const std::uint64_t before =
        sequence.tokens.empty() ? mix(sequence.salt, 77) : sequence.tokens.back().number;
    return {id, mix(before, static_cast<std::uint64_t>(id)), true, true};
  }
  ModelToken next_token(const ModelSequence& sequence, bool with_id, bool is_true) {
    const auto id = static_cast<std::int64_t>(below(3));
    const bool known = sequence.tokens.empty() || sequence.tokens.back().has_id;
    const bool before = sequence.tokens.empty() || sequence.tokens.back().is_true;
    if (with_id && known && is_true && before) return true_token(sequence, id);
    return {id, random_(), with_id && known, false};
  }

  ModelSequence& any() { return live[below(live.size())]; }

  void create() {
    const std::uint64_t salt = below(2);
    live.push_back({cache.create(salt), salt, std::vector<ModelHole>(groups()), 0, {}});
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
    EXPECT_EQ(created.found % page_size(), 0);
    EXPECT_EQ(created.found, searched);
    prefix_hits += created.found > 0;
    made.handle = created.sequence;
    for (std::int64_t i = 0; i < created.found; ++i)
      made.tokens.push_back(true_token(made, ids[static_cast<std::size_t>(i)]));
    made.committed = created.found;
    made.holes.resize(groups());
    release_unseen(made);
    live.push_back(made);
  }

  // Whether a token at `next`, or a later one, sees a position.
  bool is_seen(std::size_t group, std::int64_t position, std::int64_t next) const {
    const KVLayerGroup& of = cache.groups()[group];
    return of.window == 0 || position < of.sink_tokens || position > next - of.window;
  }
  bool is_page_seen(std::size_t group, std::int64_t page, std::int64_t next) const {
    for (std::int64_t p = page * page_size(); p < (page + 1) * page_size(); ++p)
      if (is_seen(group, p, next)) return true;
    return false;
  }
  // The pages of a group that no token from the end on sees, as positions.
  ModelHole unseen(const ModelSequence& one, std::size_t group) const {
    ModelHole gone;
    for (std::int64_t page = 0; (page + 1) * page_size() <= one.length(); ++page)
      if (!is_page_seen(group, page, one.length()))
        gone.add(page * page_size(), (page + 1) * page_size());
    return gone;
  }
  void release_unseen(ModelSequence& one) const {
    for (std::size_t g = 0; g < groups(); ++g) {
      const ModelHole gone = unseen(one, g);
      one.holes[g].add(gone.begin, gone.end);
    }
  }

  // What the books say is there, by looking at every node.
  std::vector<std::int32_t> nodes_of(const std::vector<std::int64_t>& ids,
                                     std::uint64_t salt) const {
    const cache::PrefixIndex& index = cache.state().index;
    std::vector<std::int32_t> found;
    std::uint64_t parent = 0;
    for (std::int64_t at = 0; at + page_size() <= std::ssize(ids); at += page_size()) {
      const auto wanted = std::span(ids).subspan(static_cast<std::size_t>(at),
                                                 static_cast<std::size_t>(page_size()));
      std::vector<std::int32_t> hits;
      for (std::int32_t id = 0; id < std::ssize(index.nodes()); ++id) {
        const cache::PrefixNode& node = index[id];
        if (node.serial != 0 && node.parent == parent && node.salt == salt &&
            std::ranges::equal(index.ids(id), wanted))
          hits.push_back(id);
      }
      EXPECT_LE(hits.size(), 1u) << "two nodes can be found for the same ids";
      if (hits.empty()) break;
      found.push_back(hits.front());
      parent = index[hits.front()].serial;
    }
    return found;
  }

  std::int64_t searched_prefix(const std::vector<std::int64_t>& ids, std::uint64_t salt) const {
    const std::vector<std::int32_t> nodes = nodes_of(ids, salt);
    const auto is_there = [&](std::int64_t pages) {
      for (std::size_t g = 0; g < groups(); ++g)
        for (std::int64_t i = 0; i < pages; ++i)
          if (is_page_seen(g, i, pages * page_size()) &&
              cache.state().index.page(nodes[static_cast<std::size_t>(i)], g) == kNoPage)
            return false;
      return true;
    };
    std::int64_t pages = std::ssize(nodes);
    while (!is_there(pages)) --pages;
    return pages * page_size();
  }

  void fork() {
    if (live.empty()) return;
    const ModelSequence parent = any();
    const std::int64_t at = below(3) == 0 ? parent.length() : up_to(parent.length());
    if (!parent.may_end_at(at)) return refused([&] { cache.fork(parent.handle, at); });
    ModelSequence child = parent;
    child.handle =
        at == parent.length() ? cache.fork(parent.handle) : cache.fork(parent.handle, at);
    child.cut(at);
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
    const std::int64_t length = up_to(one.length());
    if (!one.may_end_at(length)) return refused([&] { cache.truncate(one.handle, length); });
    cache.truncate(one.handle, length);
    one.cut(length);
  }

  void release_some() {
    if (live.empty() || below(3) != 0) return;
    ModelSequence& one = any();
    const bool is_before = below(2) == 0;
    std::int64_t begin = is_before ? 0 : up_to(one.length()), end = up_to(one.length());
    if (begin > end) std::swap(begin, end);
    const auto call = [&] {
      is_before ? cache.release_before(one.handle, end)
                : cache.release_between(one.handle, begin, end);
    };
    const std::int64_t from = (begin + page_size() - 1) / page_size() * page_size();
    const std::int64_t to = end / page_size() * page_size();
    for (const ModelHole& hole : one.holes)
      if (from < to && !hole.joins(from, to)) return refused(call);
    call();
    for (ModelHole& hole : one.holes) hole.add(from, to);
  }

  // Any of the tokens behind a position.
  void keep() {
    if (live.empty()) return;
    ModelSequence& one = any();
    const std::int64_t begin = up_to(one.length());
    std::vector<std::int64_t> positions;
    for (std::int64_t at = begin; at < one.length(); ++at)
      if (below(3) != 0) positions.push_back(at);
    std::int64_t stay = begin;
    std::vector<ModelToken> moved;
    for (const std::int64_t at : positions) {
      if (at == stay && moved.empty()) {
        ++stay;
      } else {
        moved.push_back(one.tokens[static_cast<std::size_t>(at)]);
        moved.back().is_true = false;
      }
    }
    const auto call = [&] { cache.keep(one.handle, begin, positions); };
    for (const ModelHole& hole : one.holes)
      if ((!moved.empty() && stay < hole.end) || !hole.may_end_at(stay + std::ssize(moved)))
        return refused(call);
    const CacheSnapshot before(cache);
    try {
      call();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::runtime) << error.what();
      EXPECT_TRUE(before == CacheSnapshot(cache));
      ++failures;
      return;
    }
    if (!moved.empty()) one.committed = std::min(one.committed, stay);
    one.cut(stay);
    one.tokens.insert(one.tokens.end(), moved.begin(), moved.end());
  }

  // As far as rows are what ids say.
  void commit() {
    if (live.empty()) return;
    ModelSequence& one = any();
    refused([&] { cache.commit(one.handle, one.length() + 1); });
    std::int64_t most = one.length();
    for (std::int64_t i = one.length(); i-- > 0;)
      if (one.tokens[static_cast<std::size_t>(i)].has_id &&
          !one.tokens[static_cast<std::size_t>(i)].is_true)
        most = i;
    const std::int64_t length = up_to(most);
    cache.commit(one.handle, length);
    one.committed = std::max(one.committed, length);
  }

  std::vector<std::size_t> some_sequences() {
    std::vector<std::size_t> which(live.size());
    for (std::size_t i = 0; i < which.size(); ++i) which[i] = i;
    std::ranges::shuffle(which, random_);
    which.resize(below(which.size() + 1));
    return which;
  }

  // Pages that appending to these takes from a group, less those it gives back, by doing it with
  // counts of holders.
  std::int64_t simulate(std::size_t group, const std::vector<std::size_t>& which,
                        const std::vector<std::int64_t>& counts) const {
    std::map<std::int32_t, int> holders;
    for (const cache::Sequence& one : cache.state().sequences)
      for (const std::int32_t page : one.tables[group].pages) ++holders[page];
    std::int64_t taken = 0;
    for (std::size_t i = 0; i < which.size(); ++i) {
      if (counts[i] == 0) continue;
      const ModelSequence& one = live[which[i]];
      const ModelHole gone = unseen(one, group);
      if (gone.begin == gone.end || !one.holes[group].joins(gone.begin, gone.end)) continue;
      const auto& pages = cache.state().sequences[one.handle.slot].tables[group].pages;
      for (std::int64_t p = gone.begin / page_size(); p < gone.end / page_size(); ++p) {
        const std::int32_t page = pages[static_cast<std::size_t>(p)];
        if (page != kNoPage && --holders[page] == 0) --taken;
      }
    }
    for (std::size_t i = 0; i < which.size(); ++i) {
      const cache::Sequence& one = cache.state().sequences[live[which[i]].handle.slot];
      const auto& pages = one.tables[group].pages;
      if (counts[i] == 0) continue;
      if (one.length % page_size() != 0) {
        int& tail = holders[pages[static_cast<std::size_t>(one.length / page_size())]];
        if (tail > 1) --tail, ++taken;
      }
      for (std::int64_t have = std::ssize(pages); have * page_size() < one.length + counts[i];)
        ++have, ++taken;
    }
    return taken;
  }
  bool fits(const std::vector<std::size_t>& which, const std::vector<std::int64_t>& counts) const {
    for (std::size_t g = 0; g < groups(); ++g) {
      const KVCacheStats stats = cache.stats(static_cast<std::int64_t>(g));
      if (simulate(g, which, counts) > stats.free_pages + stats.cached_pages) return false;
    }
    return true;
  }

  void reserve() {
    const std::vector<std::size_t> which = some_sequences();
    std::vector<NewTokens> step;
    std::vector<std::int64_t> counts;
    for (const std::size_t i : which) {
      counts.push_back(static_cast<std::int64_t>(below(9)));
      step.push_back({live[i].handle, counts.back()});
    }
    const bool can = fits(which, counts);
    EXPECT_EQ(cache.can_reserve(step), can);
    attempt(can, [&] { cache.reserve(step); });
    if (!can) return;
    for (std::size_t i = 0; i < which.size(); ++i) {
      if (counts[i] > 0) release_unseen(live[which[i]]);
      for (std::size_t g = 0; g < groups(); ++g) EXPECT_EQ(simulate(g, {which[i]}, {counts[i]}), 0);
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

  void write(std::int64_t layer, const std::vector<NewTokens>& step,
             const std::vector<ModelToken>& tokens) {
    const KVLayerGroup& of = cache.groups()[static_cast<std::size_t>(cache.group_of(layer))];
    const Tensor k = rows_of(tokens, of.kv_heads, of.head_dim, layer * 100);
    if (of.v_in_k) return cache.write(layer, step, k);
    cache.write(layer, step, k, rows_of(tokens, of.kv_heads, of.v_head_dim, kValues + layer * 100));
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
      const bool with_ids = below(8) != 0, is_draft = below(4) == 0;
      const bool is_true = !is_draft || below(2) == 0;
      ModelSequence copy = live[which[i]];
      for (std::int64_t n = 0; n < counts[i]; ++n) {
        tokens[i].push_back(next_token(copy, with_ids, is_true));
        copy.tokens.push_back(tokens[i].back());
        if (with_ids) ids[i].push_back(tokens[i].back().id);
      }
      step.push_back({live[which[i]].handle, counts[i], ids[i], is_draft});
    }
    const bool can = fits(which, counts);
    EXPECT_EQ(cache.can_reserve(step), can);
    std::vector<ModelToken> all;
    for (const auto& some : tokens) all.insert(all.end(), some.begin(), some.end());
    attempt(can, [&] { cache.append(step); });
    if (!can) return;
    std::vector<std::int64_t> layers(static_cast<std::size_t>(cache.options().layers));
    for (std::size_t i = 0; i < layers.size(); ++i) layers[i] = static_cast<std::int64_t>(i);
    std::ranges::shuffle(layers, random_);
    for (const std::int64_t layer : layers) write(layer, step, all);
    for (std::size_t i = 0; i < which.size(); ++i) {
      ModelSequence& one = live[which[i]];
      if (counts[i] == 0) continue;
      release_unseen(one);
      if (!step[i].draft && one.committed == one.length()) one.committed += counts[i];
      one.tokens.insert(one.tokens.end(), tokens[i].begin(), tokens[i].end());
    }
  }

  // Tokens that are written in some layers only, and dropped again.
  void give_up() {
    if (live.empty()) return;
    ModelSequence& one = any();
    const std::int64_t count = 1 + up_to(5);
    if (!cache.can_reserve(one.handle, count)) return;
    const std::vector<ModelToken> tokens(static_cast<std::size_t>(count));
    const std::vector<std::int64_t> ids(static_cast<std::size_t>(count), 1);
    const std::vector<NewTokens> step = {{one.handle, count, ids}};
    cache.append(step);
    release_unseen(one);
    const std::int64_t layers = cache.options().layers;
    for (std::int64_t layer = 0; layer + 1 < layers; ++layer) write(layer, step, tokens);
    refused([&] { cache.save(one.handle); });
    refused([&] { cache.save_all([](std::span<const std::byte>) {}); });
    cache.truncate(one.handle, one.length());
  }

  void save_and_load() {
    if (live.empty()) return;
    ModelSequence copy = any();
    const std::vector<std::byte> bytes = cache.save(copy.handle);
    const CacheSnapshot before(cache);
    const KVCacheStats stats = cache.stats();
    try {
      copy.handle = cache.load(bytes, copy.salt);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::runtime) << error.what();
      EXPECT_TRUE(before == CacheSnapshot(cache));
      // With all its pages anew it would not have fit either.
      bool could = true;
      for (std::size_t g = 0; g < groups(); ++g) {
        std::int64_t needed = 0;
        for (std::int64_t p = 0; p * page_size() < copy.length(); ++p)
          needed +=
              !(copy.holes[g].has(p * page_size()) && copy.holes[g].has((p + 1) * page_size() - 1));
        const KVCacheStats of = cache.stats(static_cast<std::int64_t>(g));
        could = could && needed <= of.free_pages + of.cached_pages;
      }
      EXPECT_FALSE(could);
      ++failures;
      return;
    }
    EXPECT_EQ(cache.save(copy.handle), bytes);
    EXPECT_EQ(cache.stats().sequences, stats.sequences + 1);
    live.push_back(copy);
  }

  // All sequences in a cache of their own, which is then compared in the place of the first.
  void save_and_load_all() {
    if (below(4) != 0) return;
    std::vector<std::byte> bytes;
    cache.save_all([&](std::span<const std::byte> some) {
      bytes.insert(bytes.end(), some.begin(), some.end());
    });
    KVCache other(cache.options());
    set_any_scales(other);
    std::span<const std::byte> rest(bytes);
    const auto source = [&](std::span<std::byte> to) {
      const std::size_t n = std::min<std::size_t>({to.size(), rest.size(), 1000});
      std::ranges::copy(rest.first(n), to.begin());
      rest = rest.subspan(n);
      return n;
    };
    std::vector<LoadedSequence> loaded;
    try {
      loaded = other.load_all(source);
    } catch (const Error& error) {  // forks of tokens without ids take more pages
      EXPECT_EQ(error.kind(), ErrorKind::runtime) << error.what();
      EXPECT_EQ(other.stats().used_pages, 0);
      EXPECT_EQ(broken_invariant(other), "");
      return;
    }
    EXPECT_TRUE(rest.empty());
    ASSERT_EQ(loaded.size(), live.size());
    for (const LoadedSequence& one : loaded) {
      const auto was = std::ranges::find(live, one.saved, &ModelSequence::handle);
      ASSERT_NE(was, live.end());
      was->handle = one.sequence;
    }
    std::swap(cache, other);
    for (const LoadedSequence& one : loaded) stale.push_back(one.saved);
  }

  template <class Call>
  void refused(const Call& call) {
    const CacheSnapshot before(cache);
    try {
      call();
      ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::value) << error.what();
    }
    EXPECT_TRUE(before == CacheSnapshot(cache));
  }

  // Everything that is refused changes nothing.
  void misuse() {
    EXPECT_FALSE(cache.contains(foreign_));
    refused([&] { cache.length(foreign_); });
    refused([&] { cache.commit(foreign_, 0); });
    refused([&] { cache.keep(foreign_, 0, {}); });
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
    if (live.empty()) return;
    const ModelSequence& one = any();
    const NewTokens twice[] = {{one.handle, 1}, {one.handle, 1}};
    refused([&] { cache.append(twice); });
    refused([&] { cache.can_reserve(twice); });
    refused([&] { cache.truncate(one.handle, one.length() + 1); });
    refused([&] { cache.fork(one.handle, -1); });
    const std::int64_t falling[] = {1, 0};
    refused([&] { cache.keep(one.handle, 0, falling); });
    const KeptTokens both[] = {{one.handle, one.length()}, {one.handle, one.length()}};
    refused([&] { cache.keep(both); });
    if (!one.tokens.empty()) {
      const NewTokens last[] = {{one.handle, 1}};
      const Tensor wrong({1, cache.options().kv_heads, cache.options().head_dim + 1}, DType::f32);
      refused([&] { cache.write(0, last, wrong, wrong); });
      refuse_nan(last);
    }
    std::vector<std::byte> bytes = cache.save(one.handle);
    bytes[below(bytes.size())] ^= std::byte{1};
    refused([&] { cache.load(bytes, one.salt); });
  }

  // Codes have none: rows that are there stay as they are.
  void refuse_nan(std::span<const NewTokens> step) {
    const KVLayerGroup& of = cache.groups()[static_cast<std::size_t>(cache.group_of(0))];
    if (of.k_format.is_plain()) return;
    Tensor k({1, of.kv_heads, of.head_dim}, DType::f32);
    k.data_as<float>()[below(static_cast<std::uint64_t>(k.numel()))] =
        std::numeric_limits<float>::quiet_NaN();
    const Tensor v({1, of.kv_heads, of.v_head_dim}, DType::f32);
    refused([&] { of.v_in_k ? cache.write(0, step, k) : cache.write(0, step, k, v); });
  }

  void compare() {
    ASSERT_EQ(broken_invariant(cache), "");
    std::int64_t tokens = 0;
    for (const ModelSequence& one : live) {
      ASSERT_EQ(cache.committed(one.handle), one.committed);
      for (std::size_t g = 0; g < groups(); ++g) {
        const SequenceView view = cache.view(one.handle, static_cast<std::int64_t>(g));
        ASSERT_EQ(view.length, one.length());
        if (one.holes[g].begin != one.holes[g].end) {
          ASSERT_EQ(view.hole_begin, one.holes[g].begin);
        }
        ASSERT_EQ(view.hole_end - view.hole_begin, one.holes[g].end - one.holes[g].begin);
        tokens += view.length - (view.hole_end - view.hole_begin);
        for (const std::int64_t layer : cache.groups()[g].layers)
          compare_rows(cache, layer, view, one.tokens);
      }
    }
    EXPECT_EQ(cache.stats().live_tokens, tokens);
    EXPECT_EQ(cache.stats().sequences, std::ssize(live));
  }

  std::mt19937_64 random_;
  KVCache other_;
  SequenceId foreign_;
};

}  // namespace quire::testing
