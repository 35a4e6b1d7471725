/* The same from C. */
#include <quire/quire_c.h>
#include <stdio.h>

int main(void) {
  static float zero[2 * 8 * 16], values[2 * 8 * 4], results[2 * 8 * 4];
  const int64_t shape[4] = {1, 2, 8, 16}, v_shape[4] = {1, 2, 8, 4};
  quire_tensor q, v, out;
  quire_mask_mod* causal = NULL;
  quire_block_mask* mask = NULL;
  quire_block_mask_options sizes = {0};
  quire_flex_attention_options options = {0};
  int i;
  for (i = 0; i < 2 * 8 * 4; ++i) values[i] = (float)(i / 4 % 8);
  sizes.size = sizeof sizes;
  sizes.q_len = sizes.kv_len = 8;
  options.size = sizeof options;
  if (quire_tensor_init(&q, zero, QUIRE_F32, 4, shape) != QUIRE_OK ||
      quire_tensor_init(&v, values, QUIRE_F32, 4, v_shape) != QUIRE_OK ||
      quire_tensor_init(&out, results, QUIRE_F32, 4, v_shape) != QUIRE_OK ||
      quire_mask_mod_create("q_idx >= kv_idx", NULL, &causal) != QUIRE_OK ||
      quire_block_mask_create(causal, &sizes, &mask) != QUIRE_OK) {
    printf("%s\n", quire_last_error());
    return 1;
  }
  options.block_mask = mask;
  if (quire_flex_attention(&q, &q, &v, &options, &out) != QUIRE_OK) {
    printf("%s\n", quire_last_error());
    return 1;
  }
  for (i = 0; i < 8; ++i) printf("%.1f%s", (double)results[(8 + i) * 4 + 3], i < 7 ? " " : "\n");
  quire_block_mask_free(mask);
  quire_mask_mod_free(causal);
  return 0;
}
