// ScratchLayout: hands out aligned pieces of one block of memory, or, without a block, counts how
// large it must be. The same constructor then does both. Kernels layer.
#pragma once
#include <cstddef>
#include <cstdint>

namespace quire::kernels {

class ScratchLayout {
 public:
  /// Null: counts only, and the pieces must not be used.
  explicit ScratchLayout(void* block) : block_(static_cast<char*>(block)) {}

  template <class T>
  T* take(size_t count) {
    char* piece = block_ == nullptr ? nullptr : block_ + bytes_;
    bytes_ += (count * sizeof(T) + 63) / 64 * 64;
    return reinterpret_cast<T*>(piece);
  }
  /// The unused rest of the block, which the caller lays out separately.
  void* rest() const { return block_ + bytes_; }
  size_t bytes() const { return bytes_; }
  bool counts_only() const { return block_ == nullptr; }

 private:
  char* block_;
  size_t bytes_ = 0;
};

}  // namespace quire::kernels
