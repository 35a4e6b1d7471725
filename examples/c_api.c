/* Attention from C: a causal mask and ALiBi as texts, over dense tensors and over a jagged batch,
 * and what a mistake looks like. Prints the same on every machine. */
#include <quire/quire_c.h>
#include <stdio.h>
#include <string.h>

enum { HEADS = 2, LENGTH = 96, DIM = 16, COUNT = HEADS * LENGTH * DIM };

static float q_data[COUNT], k_data[COUNT], v_data[COUNT], out_data[COUNT], lse_data[HEADS * LENGTH];
static float jagged_out[COUNT];

/* Numbers in -1..1 that are the same everywhere. */
static void fill(float* values, uint32_t seed) {
  int i;
  for (i = 0; i < COUNT; ++i) {
    seed = seed * 1664525u + 1013904223u;
    values[i] = (float)(seed >> 8) / 8388608.0f - 1.0f;
  }
}

/* Ends the program's main with 1 where something failed. */
#define CHECK(call)                                  \
  if ((call) != QUIRE_OK) {                          \
    printf("%s\n  %s\n", #call, quire_last_error()); \
    return 1;                                        \
  }

int main(void) {
  const int64_t shape[4] = {1, HEADS, LENGTH, DIM}, lse_shape[3] = {1, HEADS, LENGTH};
  const int64_t slopes_shape[1] = {HEADS}, offsets_shape[1] = {2};
  const int64_t values_shape[3] = {HEADS, LENGTH, DIM};
  float slopes_data[HEADS] = {0.0625f, 0.00390625f};
  int64_t offsets_data[2] = {0, LENGTH};
  quire_tensor q, k, v, out, lse, slopes;
  quire_buffers* buffers = NULL;
  quire_score_mod *alibi = NULL, *wrong = NULL;
  quire_mask_mod* causal = NULL;
  quire_block_mask* mask = NULL;
  double sparsity = 0;

  fill(q_data, 1);
  fill(k_data, 2);
  fill(v_data, 3);
  CHECK(quire_tensor_init(&q, q_data, QUIRE_F32, 4, shape));
  CHECK(quire_tensor_init(&k, k_data, QUIRE_F32, 4, shape));
  CHECK(quire_tensor_init(&v, v_data, QUIRE_F32, 4, shape));
  CHECK(quire_tensor_init(&out, out_data, QUIRE_F32, 4, shape));
  CHECK(quire_tensor_init(&lse, lse_data, QUIRE_F32, 3, lse_shape));
  CHECK(quire_tensor_init(&slopes, slopes_data, QUIRE_F32, 1, slopes_shape));

  /* Rules are texts; what they read by name is the caller's memory. */
  CHECK(quire_buffers_create(&buffers));
  CHECK(quire_buffers_add(buffers, "slopes", &slopes, 0));
  CHECK(quire_score_mod_create("score + slopes[h] * (kv_idx - q_idx)", buffers, &alibi));
  CHECK(quire_mask_mod_create("q_idx >= kv_idx", NULL, &causal));

  { /* Structs that are 0 but for their size ask for nothing special. */
    quire_block_mask_options options = {0};
    options.size = sizeof options;
    options.q_len = options.kv_len = LENGTH;
    options.q_block = options.kv_block = 16;
    CHECK(quire_block_mask_create(causal, &options, &mask));
    CHECK(quire_block_mask_sparsity(mask, &sparsity));
    printf("sparsity of the block mask: %.2f %%\n", sparsity);
  }

  {
    quire_flex_attention_options options = {0};
    options.size = sizeof options;
    options.score_mod = alibi;
    options.block_mask = mask;
    options.lse = &lse;
    CHECK(quire_flex_attention(&q, &k, &v, &options, &out));
    /* The first query sees the first key alone. */
    printf("first row is the first value: %s\n",
           memcmp(out_data, v_data, DIM * sizeof(float)) == 0 ? "yes" : "NO");
    printf("lse of the last row: %.3f\n", (double)lse_data[HEADS * LENGTH - 1]);
  }

  { /* The same as a jagged batch of one sequence, heads outside. */
    quire_tensor q_values, k_values, v_values, out_values, offsets;
    quire_jagged q_batch = {0}, k_batch, v_batch;
    quire_jagged_attention_options options = {0};
    CHECK(quire_tensor_init(&q_values, q_data, QUIRE_F32, 3, values_shape));
    CHECK(quire_tensor_init(&k_values, k_data, QUIRE_F32, 3, values_shape));
    CHECK(quire_tensor_init(&v_values, v_data, QUIRE_F32, 3, values_shape));
    CHECK(quire_tensor_init(&out_values, jagged_out, QUIRE_F32, 3, values_shape));
    CHECK(quire_tensor_init(&offsets, offsets_data, QUIRE_I64, 1, offsets_shape));
    q_batch.size = sizeof q_batch;
    q_batch.offsets = &offsets;
    q_batch.order = QUIRE_JAGGED_HEADS;
    k_batch = v_batch = q_batch;
    q_batch.values = &q_values;
    k_batch.values = &k_values;
    v_batch.values = &v_values;
    options.size = sizeof options;
    options.score_mod = alibi;
    options.mask_mod = causal;
    CHECK(quire_flex_attention_jagged(&q_batch, &k_batch, &v_batch, &options, &out_values));
    printf("jagged has the same bits: %s\n",
           memcmp(out_data, jagged_out, sizeof out_data) == 0 ? "yes" : "NO");
  }

  if (quire_score_mod_create("score + slope[h]", buffers, &wrong) != QUIRE_OK)
    printf("%s\n", quire_last_error());

  quire_block_mask_free(mask);
  quire_mask_mod_free(causal);
  quire_score_mod_free(alibi);
  quire_buffers_free(buffers);
  return 0;
}
