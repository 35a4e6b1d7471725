// What must hold in a KVCache between two calls, and a copy of all that can be seen of one. Reaches
// inside; O(pages). Tests only.
#pragma once
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "cache/kv_cache_state.h"
#include "quire/kv_cache.h"

namespace quire::testing {

// Collects the first thing that does not hold.
class InvariantCheck {
 public:
  explicit InvariantCheck(const KVCache& kv_cache)
      : state_(kv_cache.state()), pages_(state_.pool.pages()) {
    count_holders();
    check_pages();
    check_cached();
    check_buckets();
    check_totals();
  }
  const std::string& broken() const { return broken_; }

 private:
  void expect(bool holds, const char* what) {
    if (!holds && broken_.empty()) broken_ = what;
  }
  const cache::Page& page(std::int32_t id) const { return pages_[static_cast<std::size_t>(id)]; }

  void count_holders() {
    const std::int64_t page_size = state_.options.page_size;
    for (const cache::Sequence& one : state_.sequences) {
      if (!one.live) {
        expect(one.pages.empty(), "a released sequence holds pages");
        continue;
      }
      ++sequences_;
      tokens_ += one.length - one.begin;
      expect(0 <= one.begin && one.begin <= one.length, "begin lies in the sequence");
      expect(one.known <= one.length && one.written <= one.length, "known and written fit");
      expect(one.chained * page_size <= one.length, "chained pages fit");
      expect(std::ssize(one.pages) >= state_.pages_for(one.length), "every token has a page");
      std::set<std::int32_t> own;
      for (std::int64_t i = 0; i < std::ssize(one.pages); ++i) {
        const std::int32_t id = one.pages[static_cast<std::size_t>(i)];
        expect((id == kNoPage) == (i < one.begin / page_size), "pages are missing before begin");
        if (id == kNoPage) continue;
        expect(own.insert(id).second, "a sequence has a page twice");
        ++holders_[id];
        const auto [salt, is_new] = tenants_.try_emplace(id, one.salt);
        expect(salt->second == one.salt, "two tenants share a page");
        expect(page(id).serial == 0 || page(id).salt == one.salt, "a page has another's salt");
        const std::int64_t filled =
            std::clamp<std::int64_t>(one.length - i * page_size, 0, page_size);
        expect(page(id).fill >= filled, "a page's fill covers the tokens of its holders");
      }
    }
  }

  void check_pages() {
    std::set<std::uint64_t> serials;
    for (std::int32_t id = 0; id < std::ssize(pages_); ++id) {
      const cache::Page& one = page(id);
      const auto held = holders_.find(id);
      expect(one.refs == (held == holders_.end() ? 0 : held->second), "refs counts the holders");
      expect(one.fill >= 0 && one.fill <= state_.options.page_size, "fill fits a page");
      if (one.serial != 0) {
        ++findable_;
        expect(serials.insert(one.serial).second, "a serial was given twice");
        expect(one.fill == state_.options.page_size, "a page that can be found is full");
        expect(one.chain_serial == one.serial, "a page that can be found is its own chain");
      }
      used_ += one.refs > 0;
      shared_ += one.refs > 1;
      cached_ += one.refs == 0 && one.serial != 0;
      free_ += one.refs == 0 && one.serial == 0;
      filled_ += one.refs > 0 ? one.fill : 0;
    }
  }

  void check_cached() {
    std::int64_t listed = 0;
    std::int32_t previous = kNoPage;
    for (std::int32_t id = state_.pool.oldest_cached(); id != kNoPage && listed <= cached_;
         previous = id, id = page(id).next, ++listed) {
      expect(page(id).refs == 0 && page(id).serial != 0, "cached pages have no holder");
      expect(page(id).previous == previous, "the list of cached pages is linked both ways");
    }
    expect(listed == cached_, "the list of cached pages has all of them");
  }

  void check_buckets() {
    std::int64_t listed = 0;
    for (const std::int32_t first : state_.pool.index().buckets()) {
      std::int32_t previous = kNoPage;
      for (std::int32_t id = first; id != kNoPage && listed <= findable_;
           previous = id, id = page(id).bucket_next, ++listed) {
        expect(page(id).serial != 0, "buckets hold pages that can be found");
        expect(page(id).bucket_previous == previous, "buckets are linked both ways");
      }
    }
    expect(listed == findable_, "buckets hold every page that can be found");
  }

  void check_totals() {
    const cache::PagePool& pool = state_.pool;
    expect(pool.cached() == cached_, "cached pages are counted");
    expect(pool.free() == free_, "free pages are counted");
    expect(pool.shared() == shared_, "shared pages are counted");
    expect(pool.filled() == filled_, "filled slots are counted");
    expect(state_.live_sequences == sequences_, "sequences are counted");
    expect(state_.live_tokens == tokens_, "tokens are counted");
    expect(used_ + cached_ + free_ == std::ssize(pages_), "every page is somewhere");
  }

  const KVCache::State& state_;
  std::span<const cache::Page> pages_;
  std::string broken_;
  std::map<std::int32_t, int> holders_;
  std::map<std::int32_t, std::uint64_t> tenants_;
  std::int64_t sequences_ = 0, tokens_ = 0, findable_ = 0, used_ = 0, shared_ = 0, cached_ = 0,
               free_ = 0, filled_ = 0;
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
    put(state.live_tokens);
    put(state.copied_pages);
    put(state.pool.evictions());
    put(state.pool.oldest_cached());
    for (const cache::Sequence& one : state.sequences) {
      if (!one.live) continue;
      for (const std::int32_t page : one.pages) put(page);
      for (const std::int64_t n : {one.begin, one.length, one.known, one.written, one.chained})
        put(n);
      put(one.chain.hash);
      put(one.chain.serial);
      put(one.salt);
      put(one.generation);
    }
    for (std::int32_t id = 0; id < std::ssize(state.pool.pages()); ++id) {
      put(state.pool[id]);
      // Pages nobody knows hold anything.
      if (state.pool[id].refs == 0 && state.pool[id].serial == 0) continue;
      for (const std::int64_t token : state.pool.index().ids(id).first(filled(state, id)))
        put(token);
      put_rows(state, state.k, id);
      put_rows(state, state.v, id);
    }
  }
  friend bool operator==(const CacheSnapshot&, const CacheSnapshot&) = default;

 private:
  static std::size_t filled(const KVCache::State& state, std::int32_t id) {
    return static_cast<std::size_t>(state.pool[id].fill);
  }
  template <class T>
  void put(const T& value) {
    const auto* bytes = reinterpret_cast<const char*>(&value);
    bytes_.append(bytes, sizeof value);
  }
  void put_rows(const KVCache::State& state, const std::vector<Tensor>& tensors, std::int32_t id) {
    for (const Tensor& tensor : tensors) {
      const std::size_t size = filled(state, id) * static_cast<std::size_t>(tensor.shape()[3]) *
                               dtype_size(tensor.dtype());
      for (std::int64_t head = 0; head < tensor.shape()[1]; ++head)
        bytes_.append(reinterpret_cast<const char*>(cache::page_rows(tensor, id, head)), size);
    }
  }

  std::string bytes_;
};

}  // namespace quire::testing
