// Rule: what a visitor of the page has typed, read once, and what can be asked about it: numbers of
// its block mask, steps of the proof, and the cells of a part of the plane at any scale. No text
// for the browser is made here. Play.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "quire/block_mask.h"
#include "quire/formula.h"
#include "quire/mods.h"

namespace quire::play {

/// As typed. Sizes are at least 1; b and h lie inside batch and heads.
struct RuleText {
  std::string text;    // a formula, or @name of the gallery
  std::string entry;   // of the gallery, whose tables the formula may read; empty: none
  std::string tables;  // one a line, as mods::read_table takes them; empty lines are passed over
  mods::GallerySizes sizes;
  std::int64_t b = 0, h = 0;
};

/// A part of the plane in square cells.
struct ViewPort {
  std::int64_t q_begin = 0, kv_begin = 0;  // first query and key
  std::int64_t cell = 1;                   // queries and keys of a cell
  std::int64_t rows = 1, cols = 1;         // cells
};

struct MaskNumbers {
  BlockMaskReport report;
  std::int64_t full = 0, partial = 0, empty = 0;  // blocks
  std::int64_t bytes = 0;
  double sparsity = 0;  // percent of the elements that lie in empty blocks
};

class Rule {
 public:
  /// Throws Error, whose text shows the place with a caret.
  explicit Rule(const RuleText& typed);

  bool is_mask() const { return formula_.type() == ValueType::kBool; }
  const Formula& formula() const { return formula_; }
  const mods::GallerySizes& sizes() const { return sizes_; }
  /// Names of buffers that were declared and have no contents; of these nothing can be drawn.
  std::vector<std::string> without_contents() const;
  /// What `quire explain` prints.
  std::string explained() const;

  /// The block mask of the chosen b and h; at most `most_steps` steps of its proof.
  MaskNumbers prove(std::int64_t block, std::size_t most_steps) const;
  /// Of a mask: 0 empty, 1 partly visible, 2 visible, row by row; 3 beyond the lengths.
  std::vector<std::uint8_t> mask_cells(const ViewPort& port) const;
  /// Of a score mod: what it adds to `score` at the first query and key of each cell; -inf where it
  /// hides the key, NaN beyond the lengths.
  std::vector<float> score_cells(const ViewPort& port, float score) const;

 private:
  mods::GallerySizes sizes_;
  std::int64_t b_, h_;
  NamedBuffers buffers_;
  Formula formula_;
};

}  // namespace quire::play
