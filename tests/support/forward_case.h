// A small attention problem of one key head for kernel tests: random tensors of any types and
// steps, keys scattered over spans that are heap blocks of their exact size, lists of visible keys,
// mods; and what each row must come out as by row_rules.h. Tests only.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "kernels/forward_problem.h"
#include "quire/isa.h"
#include "quire/mod.h"
#include "quire/tensor.h"
#include "tests/support/row_rules.h"

namespace quire::testing {

struct ForwardOptions {
  int heads = 1, queries = 1;
  std::int64_t keys = 1;
  int dims = 8, value_dims = 8;
  DType q = DType::f32, k = DType::f32, v = DType::f32, out = DType::f32;
  std::int64_t span = 0;  // keys of a span; 0: one for all
  int k_column = 1, v_column = 1, q_column = 1, out_column = 1;
  int row_gap = 0;  // numbers between rows of keys and values
  double scale = 0.25;
  double spread = 1;  // size of the numbers in q
  bool pairs = false;
  std::optional<ScoreMod> score = {};
  std::optional<MaskMod> mask = {};
  /// Per row, head by head within a query; empty: everything is visible.
  std::vector<std::vector<kernels::KeyRun>> runs = {};
  std::int64_t q_begin = 0;
  kernels::Dropout dropout = {};
  unsigned seed = 1;
};

class ForwardCase {
 public:
  ForwardCase(const ForwardOptions& options, Isa isa);

  const kernels::ForwardCall& call() const { return call_; }
  kernels::KeySequence sequence() const;
  const std::vector<kernels::QueryRow>& rows() const { return rows_; }
  bool f64() const { return call_.f64; }
  bool visible(std::size_t row, std::int64_t key) const;

  /// Overwrites all numbers of a key, or of its value.
  void plant_key(std::int64_t key, double value);
  void plant_value(std::int64_t key, double value);

  /// Outputs to something no kernel writes.
  void clear_outputs();
  /// "" if the outputs of the row have the bits of the rules, else what differs.
  std::string difference(std::size_t row) const;
  std::string first_difference() const;
  /// What the rules give for a row.
  template <class T>
  RowOutput<T> expected(std::size_t row) const;

 private:
  struct Block {
    std::vector<char> bytes;
    DType dtype;
    std::int64_t step = 0, column = 1;
    double read(std::int64_t row, int column_idx) const;
    void write(std::int64_t row, int column_idx, double value);
  };
  struct Span {
    std::int64_t begin, end;
    std::unique_ptr<Block> keys, values;
  };

  std::unique_ptr<Block> make_block(DType dtype, std::int64_t rows, int columns, int column_step,
                                    int gap, double size);
  const Span& span_of(std::int64_t key) const;
  void make_spans();
  void make_rows();
  void compile_mods();
  template <class T>
  std::string difference_in(std::size_t row) const;

  ForwardOptions options_;
  std::mt19937 random_;
  std::vector<Span> spans_;
  std::vector<kernels::KeySpan> key_spans_;
  std::unique_ptr<Block> q_, out_;
  std::vector<char> lse_, max_;
  std::vector<kernels::QueryRow> rows_;
  std::vector<kernels::TileProgram> programs_;
  Tensor mask_;  // bools [1, heads, queries, keys], if there is a mask
  kernels::ForwardCall call_;
};

}  // namespace quire::testing
