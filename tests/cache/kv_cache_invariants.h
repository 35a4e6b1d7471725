// What must hold in a KVCache between two calls, and a copy of all that can be seen of one. Reaches
// inside; O(pages). Tests only.
#pragma once
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cache/kv_cache_state.h"
#include "quire/kv_cache.h"

namespace quire::testing {

// Collects the first thing that does not hold.
class InvariantCheck {
 public:
  explicit InvariantCheck(const KVCache& kv_cache) : state_(kv_cache.state()) {
    check_sequences();
    for (group_ = 0; group_ < state_.groups.size(); ++group_) {
      holders_.clear();
      tenants_.clear();
      tokens_ = findable_ = used_ = shared_ = cached_ = free_ = filled_ = 0;
      count_holders();
      check_pages();
      check_cached();
      check_totals();
    }
    check_index();
  }
  const std::string& broken() const { return broken_; }

 private:
  void expect(bool holds, const char* what) {
    if (!holds && broken_.empty()) broken_ = what;
  }
  const cache::PagePool& pool() const { return state_.groups[group_].pool; }
  const cache::Page& page(std::int32_t id) const { return pool()[id]; }

  void check_sequences() {
    const std::int64_t page_size = state_.options.page_size;
    for (const cache::Sequence& one : state_.sequences) {
      if (!one.live) continue;
      ++sequences_;
      expect(std::ssize(one.ids) <= one.length, "ids fit");
      expect(0 <= one.committed && one.committed <= one.length, "committed fits");
      expect(std::ssize(one.chains) * page_size <= one.length, "chained pages fit");
      std::int64_t least = one.length, behind = 0;
      for (const std::int64_t written : one.written) {
        least = std::min(least, written);
        behind += written < one.length;
        expect(0 <= written && written <= one.length, "written fits");
      }
      expect(one.layers_behind == behind, "layers that are behind are counted");
      expect(one.written_in_all <= least, "no layer is behind all");
      expect(behind > 0 || one.written_in_all == one.length, "all layers are written");
    }
    expect(state_.live_sequences == sequences_, "sequences are counted");
  }

  void count_holders() {
    const std::int64_t page_size = state_.options.page_size;
    for (const cache::Sequence& one : state_.sequences) {
      const cache::PageTable& table = one.tables[group_];
      if (!one.live) {
        expect(table.pages.empty(), "a released sequence holds pages");
        continue;
      }
      tokens_ += one.length - table.hole();
      expect(0 <= table.hole_begin && table.hole_begin <= table.hole_end &&
                 table.hole_end <= one.length,
             "the hole lies in the sequence");
      expect(std::ssize(table.pages) >= state_.pages_for(one.length), "every token has a page");
      std::set<std::int32_t> own;
      for (std::int64_t i = 0; i < std::ssize(table.pages); ++i) {
        const std::int32_t id = table.pages[static_cast<std::size_t>(i)];
        const bool is_gone =
            i * page_size >= table.hole_begin && (i + 1) * page_size <= table.hole_end;
        expect((id == kNoPage) == is_gone, "pages are missing in the hole");
        if (id == kNoPage) continue;
        expect(own.insert(id).second, "a sequence has a page twice");
        ++holders_[id];
        const auto [salt, is_new] = tenants_.try_emplace(id, one.salt);
        expect(salt->second == one.salt, "two tenants share a page");
        expect(!page(id).is_findable() || state_.index[page(id).node].salt == one.salt,
               "a page has another's salt");
        const std::int64_t filled =
            std::clamp<std::int64_t>(one.length - i * page_size, 0, page_size);
        expect(page(id).fill >= filled, "a page's fill covers the tokens of its holders");
      }
    }
  }

  void check_pages() {
    for (std::int32_t id = 0; id < std::ssize(pool().pages()); ++id) {
      const cache::Page& one = page(id);
      const auto held = holders_.find(id);
      expect(one.refs == (held == holders_.end() ? 0 : held->second), "refs counts the holders");
      expect(one.fill >= 0 && one.fill <= state_.options.page_size, "fill fits a page");
      if (one.is_findable()) {
        ++findable_;
        expect(state_.index[one.node].serial != 0, "a page is found at a node that is there");
        expect(state_.index.page(one.node, group_) == id, "a node knows the page that is found");
        expect(one.fill == state_.options.page_size, "a page that can be found is full");
      }
      used_ += one.refs > 0;
      shared_ += one.refs > 1;
      cached_ += one.refs == 0 && one.is_findable();
      free_ += one.refs == 0 && !one.is_findable();
      filled_ += one.refs > 0 ? one.fill : 0;
    }
    attached_ += findable_;
  }

  void check_cached() {
    std::int64_t listed = 0;
    std::int32_t previous = kNoPage;
    for (std::int32_t id = pool().oldest_cached(); id != kNoPage && listed <= cached_;
         previous = id, id = page(id).next, ++listed) {
      expect(page(id).refs == 0 && page(id).is_findable(), "cached pages have no holder");
      expect(page(id).previous == previous, "the list of cached pages is linked both ways");
    }
    expect(listed == cached_, "the list of cached pages has all of them");
  }

  void check_totals() {
    expect(pool().cached() == cached_, "cached pages are counted");
    expect(pool().free() == free_, "free pages are counted");
    expect(pool().shared() == shared_, "shared pages are counted");
    expect(pool().filled() == filled_, "filled slots are counted");
    expect(state_.groups[group_].live_tokens == tokens_, "tokens are counted");
    expect(used_ + cached_ + free_ == std::ssize(pool().pages()), "every page is somewhere");
  }

  void check_index() {
    const cache::PrefixIndex& index = state_.index;
    std::set<std::uint64_t> serials;
    std::int64_t nodes = 0, pages = 0, listed = 0;
    for (const cache::PrefixNode& node : index.nodes()) {
      if (node.serial == 0) continue;
      ++nodes;
      pages += node.pages;
      expect(node.pages > 0, "a node has a page");
      expect(serials.insert(node.serial).second, "a serial was given twice");
    }
    expect(pages == attached_, "nodes have the pages that can be found");
    for (const std::int32_t first : index.buckets()) {
      std::int32_t previous = cache::kNoNode;
      for (std::int32_t id = first; id != cache::kNoNode && listed <= nodes;
           previous = id, id = index[id].bucket_next, ++listed) {
        expect(index[id].serial != 0, "buckets hold nodes that are there");
        expect(index[id].bucket_previous == previous, "buckets are linked both ways");
      }
    }
    expect(listed == nodes, "buckets hold every node");
  }

  const KVCache::State& state_;
  std::size_t group_ = 0;
  std::string broken_;
  std::map<std::int32_t, int> holders_;
  std::map<std::int32_t, std::uint64_t> tenants_;
  std::int64_t sequences_ = 0, attached_ = 0;
  std::int64_t tokens_ = 0, findable_ = 0, used_ = 0, shared_ = 0, cached_ = 0, free_ = 0,
               filled_ = 0;
};

// Empty when all is well.
inline std::string broken_invariant(const KVCache& kv_cache) {
  return InvariantCheck(kv_cache).broken();
}

// Everything that a call that fails must leave as it was: books, ids and rows.
class CacheSnapshot {
 public:
  explicit CacheSnapshot(const KVCache& kv_cache) {
    const KVCache::State& state = kv_cache.state();
    put(state.version);
    put(state.live_sequences);
    for (const cache::Sequence& one : state.sequences)
      if (one.live) put_sequence(one);
    for (const cache::PrefixNode& node : state.index.nodes()) {
      put(node.serial);
      put(node.parent);
      put(node.salt);
      put(node.pages);
    }
    for (const cache::LayerGroup& group : state.groups) put_group(group);
  }
  friend bool operator==(const CacheSnapshot&, const CacheSnapshot&) = default;

 private:
  template <class T>
  void put(const T& value) {
    const auto* bytes = reinterpret_cast<const char*>(&value);
    bytes_.append(bytes, sizeof value);
  }
  void put_sequence(const cache::Sequence& one) {
    for (const cache::PageTable& table : one.tables) {
      for (const std::int32_t page : table.pages) put(page);
      put(table.hole_begin);
      put(table.hole_end);
    }
    for (const std::int64_t n : {one.length, one.committed, one.written_in_all, one.layers_behind})
      put(n);
    for (const std::int64_t n : one.written) put(n);
    for (const std::int64_t id : one.ids) put(id);
    for (const cache::PrefixChain& chain : one.chains) put(chain.serial);
    put(one.salt);
    put(one.generation);
  }
  void put_group(const cache::LayerGroup& group) {
    put(group.live_tokens);
    put(group.copied_pages);
    put(group.pool.evictions());
    put(group.pool.oldest_cached());
    for (std::int32_t id = 0; id < std::ssize(group.pool.pages()); ++id) {
      const cache::Page& page = group.pool[id];
      for (const std::int32_t n : {page.refs, page.fill, page.previous, page.next, page.node})
        put(n);
      // Pages nobody knows hold anything.
      if (page.refs == 0 && !page.is_findable()) continue;
      for (std::size_t layer = 0; layer < group.rows.layers(); ++layer) {
        group.rows.visit_stored(layer,
                                [&](const Tensor& tensor) { put_rows(tensor, id, page.fill); });
      }
    }
  }
  void put_rows(const Tensor& tensor, std::int32_t id, std::int64_t fill) {
    const auto size = static_cast<std::size_t>(fill * cache::row_bytes(tensor));
    for (std::int64_t head = 0; head < tensor.shape()[1]; ++head)
      bytes_.append(reinterpret_cast<const char*>(cache::page_rows(tensor, id, head)), size);
  }

  std::string bytes_;
};

}  // namespace quire::testing
