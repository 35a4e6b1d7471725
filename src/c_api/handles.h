// What the handles of the C interface hold. C API layer.
#pragma once
#include "quire/attention.h"
#include "quire/block_mask.h"
#include "quire/formula.h"
#include "quire/kv_cache.h"
#include "quire/mod.h"
#include "quire/quire_c.h"

struct quire_buffers {
  quire::NamedBuffers buffers;
};

struct quire_score_mod {
  quire::ScoreMod mod;
};

struct quire_mask_mod {
  quire::MaskMod mod;
};

struct quire_block_mask {
  quire::BlockMask mask;
};

struct quire_attention_plan {
  quire::AttentionPlan plan;
};

struct quire_attention_backward_plan {
  quire::AttentionProblem problem;
  quire::AttentionBackwardPlan plan;
};

struct quire_kv_cache {
  quire::KVCache cache;
};
