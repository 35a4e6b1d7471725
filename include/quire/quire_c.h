/* The C interface of Quire: attention with mods written as text, over the caller's memory. It is
 * stable: functions keep their meaning, structs only grow at their end (each begins with its own
 * size), enumerators keep their numbers. Public; c_api layer, over the C++ one.
 *
 * Every function that can fail returns a quire_status; quire_last_error() has the text. Nothing is
 * thrown or printed, and the caller's structs are not kept. Handles are made by *_create and freed
 * by *_free, which accepts NULL; many threads may use a handle at once as long as none frees it,
 * and it may be freed before the handles that were made from it.
 */
#ifndef QUIRE_QUIRE_C_H_
#define QUIRE_QUIRE_C_H_
#include <stddef.h>
#include <stdint.h>

#if defined(QUIRE_SHARED)
#define QUIRE_C_API __attribute__((visibility("default")))
#else
#define QUIRE_C_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- errors ---- */

typedef int32_t quire_status;
enum {
  QUIRE_OK = 0,
  QUIRE_ERROR_VALUE = 1,           /* an argument has a wrong value or shape */
  QUIRE_ERROR_TYPE = 2,            /* a wrong dtype, or a mod whose types do not fit */
  QUIRE_ERROR_INDEX = 3,           /* an index outside its axis or buffer */
  QUIRE_ERROR_NOT_IMPLEMENTED = 4, /* correct use of something that does not exist here */
  QUIRE_ERROR_RUNTIME = 5,         /* the environment failed: a variable, a missing ISA */
  QUIRE_ERROR_OUT_OF_MEMORY = 6,
  QUIRE_ERROR_INTERNAL = 7
};

/* The text of the last failed call of this thread: "[flex_attention] what is wrong; got ...", or ""
 * if none failed. Valid until the next failing call in this thread. Never NULL. */
QUIRE_C_API const char* quire_last_error(void);

/* ---- the library ---- */

/* "0.2.0" */
QUIRE_C_API const char* quire_version(void);
/* The ISA in use, such as "avx2"; NULL if QUIRE_ISA names an unavailable one (see the last error).
 */
QUIRE_C_API const char* quire_isa(void);
/* Threads of every call; 1..1024. */
QUIRE_C_API quire_status quire_set_num_threads(int32_t threads);
QUIRE_C_API quire_status quire_get_num_threads(int32_t* threads);

/* ---- tensors ---- */

typedef int32_t quire_dtype;
enum {
  QUIRE_F32 = 0,
  QUIRE_F64 = 1,
  QUIRE_BF16 = 2,
  QUIRE_F16 = 3,
  QUIRE_I8 = 4,
  QUIRE_U8 = 5,
  QUIRE_I16 = 6,
  QUIRE_I32 = 7,
  QUIRE_I64 = 8,
  QUIRE_BOOL = 9 /* one byte, 0 or 1 */
};

enum { QUIRE_MAX_RANK = 8 };

/* The caller's memory, seen as a tensor. Inputs are never written, whatever `data` points to. */
typedef struct quire_tensor {
  size_t size; /* sizeof(quire_tensor) */
  void* data;  /* the element at index 0 of every axis; a multiple of the element's size */
  quire_dtype dtype;
  int32_t rank;
  int64_t shape[QUIRE_MAX_RANK];
  int64_t strides[QUIRE_MAX_RANK]; /* in elements, of either sign; 0 repeats */
} quire_tensor;

/* Fills in a row-major tensor. */
QUIRE_C_API quire_status quire_tensor_init(quire_tensor* tensor, void* data, quire_dtype dtype,
                                           int32_t rank, const int64_t* shape);

/* ---- mods: rules as text (docs/formula.md) ---- */

/* Tensors that texts may read by name. They are read in place whenever a mod runs, so their memory
 * must outlive every mod and block mask that reads them; contents may change between calls. */
typedef struct quire_buffers quire_buffers;
QUIRE_C_API quire_status quire_buffers_create(quire_buffers** buffers);
/* name: a unique identifier that is not a word of the formula language. wants_gradient: 0 or 1; 1
 * for floats only. */
QUIRE_C_API quire_status quire_buffers_add(quire_buffers* buffers, const char* name,
                                           const quire_tensor* tensor, int32_t wants_gradient);
QUIRE_C_API void quire_buffers_free(quire_buffers* buffers);

/* How a score is changed: "score + slopes[h] * (kv_idx - q_idx)". `buffers` may be NULL. A mistake
 * in the text is an error that shows the place. */
typedef struct quire_score_mod quire_score_mod;
QUIRE_C_API quire_status quire_score_mod_create(const char* text, const quire_buffers* buffers,
                                                quire_score_mod** mod);
QUIRE_C_API void quire_score_mod_free(quire_score_mod* mod);

/* Which keys a query may see: "q_idx >= kv_idx". */
typedef struct quire_mask_mod quire_mask_mod;
QUIRE_C_API quire_status quire_mask_mod_create(const char* text, const quire_buffers* buffers,
                                               quire_mask_mod** mod);
QUIRE_C_API void quire_mask_mod_free(quire_mask_mod* mod);

/* ---- block masks ---- */

typedef struct quire_block_mask quire_block_mask;

typedef struct quire_block_mask_options {
  size_t size;               /* sizeof(quire_block_mask_options) */
  int64_t batch, heads;      /* 0 means 1: the same for all */
  int64_t q_len, kv_len;     /* from_kv_blocks: 0 for both means whole blocks */
  int64_t q_block, kv_block; /* elements of a block; 0 means 128 */
  int64_t q_begin;           /* q_idx of the first query; not for from_kv_blocks */
} quire_block_mask_options;

/* Proved from the rule. */
QUIRE_C_API quire_status quire_block_mask_create(const quire_mask_mod* mod,
                                                 const quire_block_mask_options* options,
                                                 quire_block_mask** mask);

/* Blocks chosen by data: num_blocks i32 or i64 [..., rows], indices [..., rows, n]. */
typedef struct quire_kv_blocks {
  size_t size; /* sizeof(quire_kv_blocks) */
  const quire_tensor *num_blocks, *indices;
  const quire_tensor *full_num_blocks, *full_indices; /* both or neither */
  const quire_mask_mod* mod; /* for blocks that are not full; NULL: all visible */
} quire_kv_blocks;

/* Uses q_len, kv_len, q_block and kv_block of the options; the others must be 0. options may be
 * NULL. */
QUIRE_C_API quire_status quire_block_mask_from_kv_blocks(const quire_kv_blocks* blocks,
                                                         const quire_block_mask_options* options,
                                                         quire_block_mask** mask);

/* [batch, heads, q_len, kv_len] */
QUIRE_C_API quire_status quire_block_mask_shape(const quire_block_mask* mask, int64_t shape[4]);
/* Percentage of the elements in blocks that are not computed. */
QUIRE_C_API quire_status quire_block_mask_sparsity(const quire_block_mask* mask, double* percent);
/* A picture. Writes at most `capacity` bytes, the last one 0; `length` receives the full length
 * without that 0 (as snprintf returns). text may be NULL if capacity is 0; length may be NULL. */
QUIRE_C_API quire_status quire_block_mask_to_string(const quire_block_mask* mask, char* text,
                                                    size_t capacity, size_t* length);
QUIRE_C_API void quire_block_mask_free(quire_block_mask* mask);

/* ---- attention over dense tensors ---- */

typedef struct quire_flex_attention_options {
  size_t size;                        /* sizeof(quire_flex_attention_options) */
  const quire_score_mod* score_mod;   /* NULL: none */
  const quire_block_mask* block_mask; /* NULL: everything is visible */
  double scale;                       /* 0 unless has_scale is 1 */
  int32_t has_scale;                  /* 0: the scale is 1 / sqrt(head_dim) */
  int32_t enable_gqa;     /* 1: q_heads may be a multiple of kv_heads; 0: they must be equal */
  const int64_t* q_begin; /* q_idx of the first query, [1] or [batch]; NULL: the mask's, or 0 */
  size_t q_begin_count;
  const quire_tensor *lse, *max_scores; /* receive them, row-major [batch, q_heads, q_len] */
} quire_flex_attention_options;

/* q [B, Hq, L, E], k [B, Hkv, S, E], v [B, Hkv, S, Ev], of any float dtypes and strides, into out
 * [B, Hq, L, Ev] of q's dtype, any strides. lse (natural log) and max_scores are f32, or f64 if one
 * of q, k, v is. options may be NULL. Outputs must not share memory with inputs or one another;
 * detected overlaps are errors. Nothing is written if an argument is rejected; after a fault of a
 * mod (QUIRE_ERROR_INDEX) outputs are unspecified. */
QUIRE_C_API quire_status quire_flex_attention(const quire_tensor* q, const quire_tensor* k,
                                              const quire_tensor* v,
                                              const quire_flex_attention_options* options,
                                              const quire_tensor* out);

/* ---- attention over jagged batches: sequences one after the other ---- */

enum {
  QUIRE_JAGGED_TOKENS = 0, /* values [total, heads, dim] */
  QUIRE_JAGGED_HEADS = 1   /* values [heads, total, dim] */
};

/* Sequence i is the tokens offsets[i] .. offsets[i + 1] - 1, or the first lengths[i] of them. */
typedef struct quire_jagged {
  size_t size; /* sizeof(quire_jagged) */
  const quire_tensor* values;
  const quire_tensor* offsets; /* i32 or i64 [n + 1] */
  const quire_tensor* lengths; /* i32 or i64 [n], or NULL */
  int32_t order;               /* QUIRE_JAGGED_TOKENS or QUIRE_JAGGED_HEADS */
} quire_jagged;

typedef struct quire_jagged_attention_options {
  size_t size; /* sizeof(quire_jagged_attention_options); fields as above */
  const quire_score_mod* score_mod;
  const quire_mask_mod* mask_mod; /* b is the sequence; q_idx and kv_idx count inside it */
  double scale;
  int32_t has_scale;
  int32_t enable_gqa;
  const quire_tensor *lse, *max_scores; /* [total, q_heads] or [q_heads, total], like q */
} quire_jagged_attention_options;

/* out has q's order and dtype and as many tokens; holes are not written. */
QUIRE_C_API quire_status quire_flex_attention_jagged(const quire_jagged* q, const quire_jagged* k,
                                                     const quire_jagged* v,
                                                     const quire_jagged_attention_options* options,
                                                     const quire_tensor* out);

/* ---- attention over keys and values in pages ---- */

/* Key j of sequence i is slot j % page_size of page page_table[i, j / page_size]. */
typedef struct quire_paged_keys {
  size_t size;                    /* sizeof(quire_paged_keys) */
  const quire_tensor *k, *v;      /* [pages, kv_heads, page_size, dim], any strides */
  const quire_tensor* page_table; /* i32 or i64 [n, most pages of a sequence] */
  const quire_tensor* lengths;    /* i32 or i64 [n]: keys of each sequence */
} quire_paged_keys;

typedef struct quire_paged_attention_options {
  size_t size; /* sizeof(quire_paged_attention_options); fields as above */
  const quire_score_mod* score_mod;
  const quire_mask_mod* mask_mod;     /* kv_idx counts inside the sequence; not with block_mask */
  const quire_block_mask* block_mask; /* [n or 1, q_heads or 1, q_len, at least the longest] */
  double scale;
  int32_t has_scale;
  int32_t enable_gqa;
  const int64_t* q_begin; /* [1] or [n] */
  size_t q_begin_count;
  const quire_tensor *lse, *max_scores; /* row-major [n, q_heads, q_len] */
} quire_paged_attention_options;

/* q [n, q_heads, q_len, dim] into out [n, q_heads, q_len, v_dim] of q's dtype. The bits are those
 * of the same keys in a dense tensor. */
QUIRE_C_API quire_status quire_flex_attention_paged(const quire_tensor* q,
                                                    const quire_paged_keys* keys,
                                                    const quire_paged_attention_options* options,
                                                    const quire_tensor* out);

/* ---- gradients ---- */

/* What the forward pass returned, and the gradients of the loss with respect to it. */
typedef struct quire_loss {
  size_t size;                       /* sizeof(quire_loss) */
  const quire_tensor *out, *lse;     /* from the forward pass */
  const quire_tensor *d_out, *d_lse; /* shaped as out and lse, any float dtype; NULL: 0 */
} quire_loss;

/* Receive the gradients, with the shapes and dtypes of their inputs, any strides. NULL: not wanted.
 * Buffers by name: those added with wants_gradient. */
typedef struct quire_gradients {
  size_t size; /* sizeof(quire_gradients) */
  const quire_tensor *q, *k, *v;
  const char* const* buffer_names;
  const quire_tensor* const* buffers;
  size_t buffer_count;
  const quire_tensor* sinks; /* [q_heads], of the dtype of the problem's sinks */
} quire_gradients;

/* Gradients of quire_flex_attention with the same options, whose lse and max_scores are ignored.
 * They must not share memory with anything else. */
QUIRE_C_API quire_status quire_flex_attention_backward(const quire_tensor* q, const quire_tensor* k,
                                                       const quire_tensor* v,
                                                       const quire_flex_attention_options* options,
                                                       const quire_loss* loss,
                                                       const quire_gradients* gradients);

/* Gradients of the values in quire_flex_attention_jagged, each in its own order; holes are 0. */
QUIRE_C_API quire_status quire_flex_attention_jagged_backward(
    const quire_jagged* q, const quire_jagged* k, const quire_jagged* v,
    const quire_jagged_attention_options* options, const quire_loss* loss,
    const quire_gradients* gradients);

/* ---- quantised keys and values ---- */

/* Code bytes of a row, and its number of scales (zero points and minima included), in "int8",
 * "int8_channel", "u8", "int4", "fp8_e4m3", "fp8_e5m2", "q8_0" or "q4_0", optionally followed by
 * "+hadamard". Either output may be NULL. */
QUIRE_C_API quire_status quire_kv_format_sizes(const char* format, int64_t head_dim,
                                               int64_t* code_bytes, int64_t* scale_count);

/* Codes floats x [.., heads, tokens, dim] as codes [.., code bytes], row-major, i8 for "int8" and
 * "int8_channel", otherwise u8, with scales, row-major: int8 [..] f32, u8 [.., 2] f32, int4 [..,
 * dim / 32, 2] f16; NULL for q8_0 and q4_0. The scales of int8_channel [heads, dim] f32 and fp8
 * [heads] f32 are read if scales_given is 1, otherwise derived from x and written. */
QUIRE_C_API quire_status quire_quantize(const quire_tensor* x, const char* format,
                                        int32_t scales_given, const quire_tensor* codes,
                                        const quire_tensor* scales);
/* The inverse, into row-major `out` of any float dtype. */
QUIRE_C_API quire_status quire_dequantize(const quire_tensor* codes, const quire_tensor* scales,
                                          const char* format, const quire_tensor* out);

/* ---- any call: one description, one run, one backward ---- */

/* What the functions above fill in. Queries and keys come in one of three forms: dense (q, k, v),
 * jagged (jagged_q, jagged_k, jagged_v) or paged (q, pages). Unused fields are NULL or 0. */
typedef struct quire_attention_problem {
  size_t size; /* sizeof(quire_attention_problem) */
  const quire_tensor *q, *k, *v;
  const quire_jagged *jagged_q, *jagged_k, *jagged_v;
  const quire_paged_keys* pages;
  const quire_score_mod* score_mod;
  const quire_mask_mod* mask_mod;     /* not together with block_mask */
  const quire_block_mask* block_mask; /* dense and paged */
  double scale;                       /* 0 unless has_scale is 1 */
  int32_t has_scale;
  int32_t enable_gqa;
  const int64_t* q_begin; /* [1], or one per batch entry or sequence */
  size_t q_begin_count;
  /* Weights are dropped with this probability, 0 to 1, and the others divided by 1 - dropout_p.
   * Which ones depends only on (seed, b, h, q_idx, kv_idx); pass the same seed to the backward. */
  double dropout_p;
  uint64_t seed;
  /* NULL, or i32 or i64 [B, L, k] or [B, Hq, L, k]: the only keys that each query may see, further
   * restricted by the mask; -1: unused. For jagged queries [total, k], or the shape of the values
   * with k in place of dim. */
  const quire_tensor* key_indices;
  /* Floats [q_heads], or NULL: a logit per head that takes part in the sum of weights but has no
   * value. lse_with_sinks = 1: lse, here and in the backward, covers the whole sum. */
  const quire_tensor* sinks;
  int32_t lse_with_sinks;
  /* For coded keys and values the name of their format (quire_kv_format_sizes); the tensors then
   * hold the codes. NULL: plain numbers. Scales: NULL for formats that have none. */
  const char *k_format, *v_format;
  const quire_tensor *k_scales, *v_scales;
} quire_attention_problem;

typedef struct quire_attention_outputs {
  size_t size;                                /* sizeof(quire_attention_outputs) */
  const quire_tensor *out, *lse, *max_scores; /* out is required */
} quire_attention_outputs;

QUIRE_C_API quire_status quire_attention(const quire_attention_problem* problem,
                                         const quire_attention_outputs* outputs);
QUIRE_C_API quire_status quire_attention_backward(const quire_attention_problem* problem,
                                                  const quire_loss* loss,
                                                  const quire_gradients* gradients);

/* ---- plans: made once, run for every layer; a run allocates nothing ---- */

/* One run of a plan at a time. Tensors of the problem give shapes and dtypes; offsets, lengths,
 * page tables and block masks are as they were when the plan was made. */
typedef struct quire_attention_plan quire_attention_plan;
QUIRE_C_API quire_status quire_attention_plan_create(const quire_attention_problem* problem,
                                                     quire_attention_plan** plan);
/* q, k and v as the problem has them: dense tensors, values of jagged batches, pages of keys. */
QUIRE_C_API quire_status quire_attention_plan_run(quire_attention_plan* plan, const quire_tensor* q,
                                                  const quire_tensor* k, const quire_tensor* v,
                                                  const quire_attention_outputs* outputs);
QUIRE_C_API void quire_attention_plan_free(quire_attention_plan* plan);

/* The same for gradients. `wanted` says which: its non-NULL tensors, and its buffers. */
typedef struct quire_attention_backward_plan quire_attention_backward_plan;
QUIRE_C_API quire_status quire_attention_backward_plan_create(
    const quire_attention_problem* problem, const quire_gradients* wanted,
    quire_attention_backward_plan** plan);
/* `gradients`: exactly those that are wanted. */
QUIRE_C_API quire_status quire_attention_backward_plan_run(
    quire_attention_backward_plan* plan, const quire_tensor* q, const quire_tensor* k,
    const quire_tensor* v, const quire_loss* loss, const quire_gradients* gradients);
QUIRE_C_API void quire_attention_backward_plan_free(quire_attention_backward_plan* plan);

/* ---- a cache of keys and values in pages (docs/kv_cache.md) ---- */

/* Functions that take a const cache may run concurrently; the others need exclusive access. Every
 * call is all or nothing. */
typedef struct quire_kv_cache quire_kv_cache;

/* A handle to a sequence of one cache; invalid for ever once the sequence is released. */
typedef struct quire_sequence {
  uint64_t cache;
  uint32_t slot, generation;
} quire_sequence;

/* Layers with rows of the same shape whose queries look equally far back. */
typedef struct quire_kv_layer_group {
  size_t size;           /* sizeof(quire_kv_layer_group) */
  const int64_t* layers; /* indices in the model; each layer is in one group */
  size_t layer_count;
  int64_t kv_heads, head_dim;
  int64_t v_head_dim; /* 0: as head_dim */
  quire_dtype dtype;
  int32_t zero;        /* must be 0 */
  int64_t window;      /* queries see this many last tokens; 0: all */
  int64_t sink_tokens; /* and this many first ones; only with a window */
  int64_t n_pages;     /* of its pool; 0: the cache's */
  /* Keys and values are coded when they are written: names of formats (quire_kv_format_sizes);
   * NULL: numbers of the dtype. */
  const char *k_format, *v_format;
  int32_t v_in_k; /* 1: values are the first v_head_dim numbers of keys, and not stored again */
  int32_t zero2;  /* must be 0 */
} quire_kv_layer_group;

typedef struct quire_kv_cache_options {
  size_t size; /* sizeof(quire_kv_cache_options) */
  int64_t layers, kv_heads, head_dim;
  int64_t v_head_dim; /* 0: as head_dim */
  quire_dtype dtype;
  int32_t zero;      /* must be 0 */
  int64_t page_size; /* tokens; 0: 16 */
  int64_t n_pages;
  const quire_kv_layer_group* const* groups; /* replaces the first five, which must be 0 then */
  size_t group_count;
  const char *k_format, *v_format; /* see quire_kv_layer_group; NULL and 0 with groups */
  int32_t v_in_k;
  int32_t zero2; /* must be 0 */
} quire_kv_cache_options;

QUIRE_C_API quire_status quire_kv_cache_create(const quire_kv_cache_options* options,
                                               quire_kv_cache** cache);
QUIRE_C_API void quire_kv_cache_free(quire_kv_cache* cache);

/* An empty sequence. Sequences of different salts never share a page by prefix. */
QUIRE_C_API quire_status quire_kv_cache_create_sequence(quire_kv_cache* cache, uint64_t salt,
                                                        quire_sequence* sequence);
/* A sequence that begins with the cached tokens of these ids; `found` receives how many. */
QUIRE_C_API quire_status quire_kv_cache_create_with_prefix(quire_kv_cache* cache,
                                                           const int64_t* ids, size_t id_count,
                                                           uint64_t salt, quire_sequence* sequence,
                                                           int64_t* found);
QUIRE_C_API quire_status quire_kv_cache_cached_prefix(const quire_kv_cache* cache,
                                                      const int64_t* ids, size_t id_count,
                                                      uint64_t salt, int64_t* found);
/* position -1: at its end. */
QUIRE_C_API quire_status quire_kv_cache_fork(quire_kv_cache* cache, quire_sequence sequence,
                                             int64_t position, quire_sequence* fork);
QUIRE_C_API quire_status quire_kv_cache_release(quire_kv_cache* cache, quire_sequence sequence);
QUIRE_C_API quire_status quire_kv_cache_truncate(quire_kv_cache* cache, quire_sequence sequence,
                                                 int64_t length);
QUIRE_C_API quire_status quire_kv_cache_release_before(quire_kv_cache* cache,
                                                       quire_sequence sequence, int64_t position);
QUIRE_C_API quire_status quire_kv_cache_release_between(quire_kv_cache* cache,
                                                        quire_sequence sequence, int64_t begin,
                                                        int64_t end);
/* Tokens before begins[i] of sequences[i], then those at positions[i], ascending. */
typedef struct quire_kept_tokens {
  size_t size; /* sizeof(quire_kept_tokens) */
  size_t sequence_count;
  const quire_sequence* sequences;
  const int64_t* begins;
  const int64_t* const* positions;
  const size_t* position_counts;
} quire_kept_tokens;
QUIRE_C_API quire_status quire_kv_cache_keep(quire_kv_cache* cache, const quire_kept_tokens* kept);
/* Tokens before `length` are accepted: they can be found by prefix. */
QUIRE_C_API quire_status quire_kv_cache_commit(quire_kv_cache* cache, quire_sequence sequence,
                                               int64_t length);

/* The tokens that sequences gain in a step. */
typedef struct quire_step {
  size_t size; /* sizeof(quire_step) */
  size_t sequence_count;
  const quire_sequence* sequences;
  const int64_t* counts;     /* tokens of each */
  const int64_t* const* ids; /* counts[i] ids each; NULL for one sequence or for all */
  const int32_t* drafts;     /* 1: found by prefix only after commit; NULL: no drafts */
} quire_step;

QUIRE_C_API quire_status quire_kv_cache_can_reserve(const quire_kv_cache* cache,
                                                    const quire_step* step, int32_t* can);
QUIRE_C_API quire_status quire_kv_cache_reserve(quire_kv_cache* cache, const quire_step* step);
/* QUIRE_ERROR_RUNTIME when out of pages. */
QUIRE_C_API quire_status quire_kv_cache_append(quire_kv_cache* cache, const quire_step* step);
/* The rows of the last tokens of each sequence: k [tokens, kv_heads, head_dim], v likewise, or
 * NULL with v_in_k. */
QUIRE_C_API quire_status quire_kv_cache_write(quire_kv_cache* cache, int64_t layer,
                                              const quire_step* step, const quire_tensor* k,
                                              const quire_tensor* v);
/* The scales of a layer whose format shares them between tokens, before its first token: f32,
 * int8_channel [kv_heads, dim], fp8 [kv_heads] or [1] (initially 1). NULL: unchanged. */
QUIRE_C_API quire_status quire_kv_cache_set_scales(quire_kv_cache* cache, int64_t layer,
                                                   const quire_tensor* k_scales,
                                                   const quire_tensor* v_scales);
/* Says that rows were written through k_pages and v_pages; layer -1: in all layers. */
QUIRE_C_API quire_status quire_kv_cache_mark_written(quire_kv_cache* cache, int64_t layer,
                                                     const quire_step* step);

/* The page table of a sequence in a group of layers, and its ids, as far as they are known; valid
 * until a call that changes the sequence. */
typedef struct quire_sequence_view {
  size_t size;          /* sizeof(quire_sequence_view), set by the caller */
  const int32_t* pages; /* -1 where pages were given back */
  size_t page_count;
  int64_t begin, length;
  int64_t hole_begin, hole_end; /* positions in this range were released */
  int64_t committed;
  const int64_t* ids;
  size_t id_count;
} quire_sequence_view;
QUIRE_C_API quire_status quire_kv_cache_view(const quire_kv_cache* cache, quire_sequence sequence,
                                             int64_t group, quire_sequence_view* view);
QUIRE_C_API quire_status quire_kv_cache_contains(const quire_kv_cache* cache,
                                                 quire_sequence sequence, int32_t* contains);
QUIRE_C_API quire_status quire_kv_cache_group_of(const quire_kv_cache* cache, int64_t layer,
                                                 int64_t* group);
/* [n_pages, kv_heads, page_size, dim] of a layer, the cache's own memory; for coded formats the
 * codes, with their bytes on the last axis. */
QUIRE_C_API quire_status quire_kv_cache_k_pages(quire_kv_cache* cache, int64_t layer,
                                                quire_tensor* pages);
QUIRE_C_API quire_status quire_kv_cache_v_pages(quire_kv_cache* cache, int64_t layer,
                                                quire_tensor* pages);

/* The scales that go with the codes; of shape [0] if there are none. */
QUIRE_C_API quire_status quire_kv_cache_k_scales(quire_kv_cache* cache, int64_t layer,
                                                 quire_tensor* scales);
QUIRE_C_API quire_status quire_kv_cache_v_scales(quire_kv_cache* cache, int64_t layer,
                                                 quire_tensor* scales);

typedef struct quire_kv_cache_stats {
  size_t size; /* sizeof(quire_kv_cache_stats), set by the caller */
  int64_t sequences, live_tokens, stored_tokens;
  int64_t pages, used_pages, shared_pages, cached_pages, free_pages;
  int64_t evictions, copied_pages;
  double waste;
  int64_t token_bytes;       /* of a token in all layers, scales included */
  int64_t bytes, used_bytes; /* of all pages, of used ones */
} quire_kv_cache_stats;
/* Of a group of layers; -1: summed over all of them. */
QUIRE_C_API quire_status quire_kv_cache_get_stats(const quire_kv_cache* cache, int64_t group,
                                                  quire_kv_cache_stats* stats);

/* Receives the next bytes and returns 0; other results end the call with QUIRE_ERROR_RUNTIME. */
typedef int32_t (*quire_byte_sink)(void* user, const void* bytes, size_t size);
/* Fills in at most `size` bytes and returns how many; 0: end of input. */
typedef size_t (*quire_byte_source)(void* user, void* bytes, size_t size);

QUIRE_C_API quire_status quire_kv_cache_save_to(const quire_kv_cache* cache,
                                                quire_sequence sequence, quire_byte_sink sink,
                                                void* user);
QUIRE_C_API quire_status quire_kv_cache_load_from(quire_kv_cache* cache, quire_byte_source source,
                                                  void* user, uint64_t salt,
                                                  quire_sequence* sequence);
/* To a file, which is replaced only when everything is written. */
QUIRE_C_API quire_status quire_kv_cache_save_to_file(const quire_kv_cache* cache,
                                                     quire_sequence sequence, const char* path);
QUIRE_C_API quire_status quire_kv_cache_load_from_file(quire_kv_cache* cache, const char* path,
                                                       uint64_t salt, quire_sequence* sequence);
QUIRE_C_API quire_status quire_kv_cache_save_all(const quire_kv_cache* cache, quire_byte_sink sink,
                                                 void* user);
QUIRE_C_API quire_status quire_kv_cache_save_all_to_file(const quire_kv_cache* cache,
                                                         const char* path);
/* Called for every loaded sequence, with its old and new handles. */
typedef void (*quire_loaded)(void* user, quire_sequence saved, quire_sequence sequence);
QUIRE_C_API quire_status quire_kv_cache_load_all(quire_kv_cache* cache, quire_byte_source source,
                                                 void* source_user, quire_loaded loaded,
                                                 void* user);
QUIRE_C_API quire_status quire_kv_cache_load_all_from_file(quire_kv_cache* cache, const char* path,
                                                           quire_loaded loaded, void* user);

/* ---- attention over a cache ---- */

/* Options of a single sequence in a step. */
typedef struct quire_sequence_options {
  size_t size; /* sizeof(quire_sequence_options) */
  quire_sequence sequence;
  int32_t has_q_begin, has_window, has_b; /* 1: the number below is used; 0: it must be 0 */
  int32_t zero;                           /* must be 0 */
  int64_t q_begin;                        /* q_idx of its first query */
  int64_t window;                         /* overrides the step's */
  int64_t b;                              /* what mods see as b */
  const quire_mask_mod* mask_mod;         /* overrides the step's, or NULL */
  const int64_t* parents; /* its last tokens are a tree: q_idx, kv_idx are depths; NULL: none */
  size_t parent_count;
} quire_sequence_options;

typedef struct quire_attend_options {
  size_t size;     /* sizeof(quire_attend_options) */
  int64_t q_heads; /* quire_attend: 0, they are q's */
  quire_dtype dtype;
  int32_t has_scale;
  int64_t group; /* of layers; quire_attend: 0, it is the layer's */
  const quire_score_mod* score_mod;
  const quire_mask_mod* mask_mod;
  int64_t window; /* 0: only the group's, if any */
  double scale;   /* 0 unless has_scale is 1 */
  double dropout_p;
  uint64_t seed;
  const quire_sequence_options* const* sequence_options;
  size_t sequence_option_count;
} quire_attend_options;

/* Once per step, for all layers of a group; valid until the cache changes (write does not). */
QUIRE_C_API quire_status quire_attend_plan_create(const quire_kv_cache* cache,
                                                  const quire_step* step,
                                                  const quire_attend_options* options,
                                                  quire_attention_plan** plan);
/* q [tokens, q_heads, head_dim]: the last counts[i] tokens of each sequence. */
QUIRE_C_API quire_status quire_attend_plan_run(quire_attention_plan* plan,
                                               const quire_kv_cache* cache, int64_t layer,
                                               const quire_tensor* q,
                                               const quire_attention_outputs* outputs);
/* Makes a plan and runs it once. */
QUIRE_C_API quire_status quire_attend(const quire_kv_cache* cache, int64_t layer,
                                      const quire_step* step, const quire_attend_options* options,
                                      const quire_tensor* q,
                                      const quire_attention_outputs* outputs);

#ifdef __cplusplus
}
#endif

#endif /* QUIRE_QUIRE_C_H_ */
