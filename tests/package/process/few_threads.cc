// Calls where threads cannot be made, or not all of them. Built by test_process.py, run under
// limits.
//
//   few_threads N   with N threads asked for
#include <quire/quire.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

using namespace quire;

int main(int, char** arguments) {
  try {
    set_num_threads(std::atoi(arguments[1]));
    Tensor q({1, 8, 200, 32}, DType::f32);
    for (std::int64_t i = 0; i < q.numel(); ++i)
      q.data_as<float>()[i] = static_cast<float>(i * 7919 % 1013) / 1013 - 0.5f;
    for (int repeat = 0; repeat < 5; ++repeat) {
      const BlockMask mask = create_block_mask(mods::causal(), 1, 1, 200, 200);
      AuxOutput aux;
      FlexAttentionOptions options{.block_mask = mask, .return_aux = {.lse = true}, .aux = &aux};
      const Tensor out = flex_attention(q, q, q, options);
      SerialExecutor serial;
      options.executor = &serial;
      const Tensor alone = flex_attention(q, q, q, options);
      if (std::memcmp(out.data(), alone.data(), static_cast<std::size_t>(out.numel()) * 4) != 0) {
        std::puts("other bits");
        return 1;
      }
      (void)flex_attention_backward(
          {.q = q, .k = q, .v = q, .out = out, .lse = *aux.lse, .d_out = out},
          {.forward = {.block_mask = mask}});
    }
  } catch (const Error& error) {
    std::printf("Error: %s\n", error.what());
    return 0;
  } catch (const std::bad_alloc&) {
    std::puts("no memory");
    return 0;
  }
  std::puts("fine");
  return 0;
}
