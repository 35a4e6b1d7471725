// RuleProof: proves which keys a rule shows to the queries of a step, as runs. RuleMemory: keeps
// the proofs of rules that do not change from step to step: when a sequence has grown by a token,
// the rule is evaluated only where it was undecided for the 64 positions around. Plan layer.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "cache/step_memory.h"
#include "kernels/forward_problem.h"
#include "kernels/prefill/forward_functions.h"
#include "mask/block_prover.h"
#include "plan/step_sequence.h"
#include "quire/executor.h"
#include "quire/mod.h"

namespace quire::plan {

/// Blocks in which tiles of queries are proved.
inline constexpr BlockSize kTileBlocks{kernels::kQueryTile, 128};

/// The b, queries and keys that a proof covers.
struct ProofExtents {
  std::int64_t b_end = 0, q_begin = 0, q_end = 0, kv_end = 0;

  static ProofExtents of(std::span<const StepSequence> sequences);
  bool cover(const ProofExtents& other) const;
};

class RuleProof {
 public:
  struct Options {
    std::int64_t heads = 1;
    std::size_t workers = 1;
    mask::Proof how = mask::Proof::kContents;
    bool is_kept = false;  // for later steps
  };

  RuleProof(const MaskMod& rule, const ProofExtents& extents, const Options& options);

  bool by_head() const { return rows_.prover.depends_on_h(); }
  /// Whether the proof stays true, and elements that no query needs may be evaluated as well.
  bool can_be_kept() const;
  const ProofExtents& extents() const { return extents_; }
  void throw_first_fault() const;

  /// Call before prove_rows: proves what it can about the positions around the queries.
  void prepare(std::span<const StepSequence* const> sequences, Executor& executor);
  /// For each query, the runs of keys that head h sees.
  void prove_rows(const StepSequence& of, std::int64_t h, std::size_t worker,
                  std::vector<mask::RunList>& rows);
  /// Call before prove_tiles.
  void prepare_tiles();
  /// For each tile of queries, the runs of kTileBlocks.
  void prove_tiles(const StepSequence& of, std::int64_t h, std::size_t worker,
                   std::vector<mask::RunList>& tiles);
  /// Whether a query sees a key after its own; decided tile by tile.
  bool shows_later(const StepSequence& of, std::int64_t h, std::size_t worker);
  /// Whether a query sees a key of begin <= key < end.
  bool sees(const StepSequence& of, std::int64_t h, std::int64_t begin, std::int64_t end,
            std::size_t worker);

 private:
  struct Prover {
    Prover(const MaskMod& rule, const ProofExtents& extents, BlockSize size,
           const Options& options);
    void prove(const StepSequence& of, std::int64_t h, std::size_t worker,
               std::vector<mask::RunList>& blocks);

    BlockSize size;
    mask::BlockProver prover;
    std::vector<mask::BlockProver::Worker> workers;
  };
  // 64 positions: what all of them see, and what some of them may see.
  struct Band {
    std::int64_t number = 0, b = 0, h = 0;
    friend bool operator==(const Band&, const Band&) = default;
  };
  struct HashBand {
    std::size_t operator()(const Band& band) const noexcept;
  };

  Band band_of(const StepSequence& of, std::int64_t h, std::int64_t q_idx) const;
  std::vector<kernels::KeyRun> prove_band(const Band& band, std::size_t worker);

  MaskMod rule_;
  ProofExtents extents_;
  Options options_;
  Prover rows_;
  std::optional<Prover> tiles_, later_;
  std::unordered_map<Band, std::vector<kernels::KeyRun>, HashBand> bands_;
};

class RuleMemory final : public cache::StepMemory {
 public:
  /// The kept proof of a rule; a new one if there is none for these extents. Null: the rule reads
  /// tables, whose contents may change, or may fail for elements that no query needs.
  RuleProof* find(const MaskMod& rule, const ProofExtents& extents, std::int64_t heads,
                  std::size_t workers);

 private:
  struct Kept {
    MaskMod rule;
    std::int64_t heads = 1;
    std::size_t workers = 1;
    std::unique_ptr<RuleProof> proof;  // null: it cannot be kept
  };
  std::vector<Kept> kept_;  // the most recently used one last
};

}  // namespace quire::plan
