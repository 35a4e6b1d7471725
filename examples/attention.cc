// flex_attention with your own rule: a window mask and ALiBi, compared with plain loops in f64,
// then computed on one thread, on two, on every ISA, and one row alone: always the same bits.
#include <quire/quire.h>

#include <cmath>
#include <cstring>
#include <iostream>

using namespace quire;

constexpr int64_t kHeads = 2, kLength = 96, kDim = 32;
constexpr int64_t kWindow = 40;

// Numbers in -1..1, the same on every machine.
Tensor numbers(uint32_t seed) {
  Tensor tensor = Tensor::empty({1, kHeads, kLength, kDim}, DType::f32);
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    seed = seed * 1664525 + 1013904223;
    tensor.data_as<float>()[i] = static_cast<float>(seed >> 8) * 0x1p-23f - 1;
  }
  return tensor;
}

bool same_bits(const ConstTensorView& a, const ConstTensorView& b) {
  const Tensor x = contiguous(a), y = contiguous(b);
  return x.shape() == y.shape() && std::memcmp(x.data(), y.data(), x.numel() * sizeof(float)) == 0;
}

// The definition, as in papers. Returns the largest difference from `out`.
double error_against_loops(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& out) {
  const std::vector<float> slopes = mods::alibi_slopes(kHeads);
  double error = 0;
  for (int64_t h = 0; h < kHeads; ++h) {
    for (int64_t row = 0; row < kLength; ++row) {
      double sum = 0, result[kDim] = {};
      for (int64_t key = std::max<int64_t>(0, row - kWindow + 1); key <= row; ++key) {
        double score = 0;
        for (int64_t d = 0; d < kDim; ++d)
          score += double{q.at<float>({0, h, row, d})} * k.at<float>({0, h, key, d});
        score = score / std::sqrt(double{kDim}) + slopes[h] * double(key - row);
        sum += std::exp(score);
        for (int64_t d = 0; d < kDim; ++d)
          result[d] += std::exp(score) * v.at<float>({0, h, key, d});
      }
      for (int64_t d = 0; d < kDim; ++d)
        error = std::max(error, std::fabs(result[d] / sum - out.at<float>({0, h, row, d})));
    }
  }
  return error;
}

int main() {
  const Tensor q = numbers(1), k = numbers(2), v = numbers(3);
  const ScoreMod alibi = mods::alibi(kHeads);
  const BlockMask mask =
      create_block_mask(mods::sliding_window(kWindow), 1, 1, kLength, kLength, {.block_size = 8});
  std::cout << draw(mask, {.width = 48}) << "\n";

  FlexAttentionOptions options{.score_mod = alibi, .block_mask = mask};
  const Tensor out = flex_attention(q, k, v, options);
  bool all_good = true;
  const auto report = [&](const char* what, bool good) {
    std::cout << what << (good ? "yes\n" : "NO\n");
    all_good &= good;
  };
  std::cout << alibi.to_string() << "\n";
  report("within 1e-6 of plain loops in f64: ", error_against_loops(q, k, v, out) < 1e-6);

  SerialExecutor one;
  options.executor = &one;
  const Tensor serial = flex_attention(q, k, v, options);
  const auto two = make_thread_pool(2);
  options.executor = two.get();
  report("1 and 2 threads, bits equal: ", same_bits(serial, flex_attention(q, k, v, options)));

  bool same = true;
  for (const Isa isa : available_isas()) {
    const ScopedIsa use(isa);
    same &= same_bits(out, flex_attention(q, k, v, options));
  }
  report("every ISA of this CPU, bits equal: ", same);

  // One step of decoding: the last query alone, with the last row of the mask.
  options.block_mask = mask.rows(kLength - 1, kLength);
  const Tensor last = flex_attention(q.view().slice(2, kLength - 1, kLength), k, v, options);
  report("the last row computed alone, bits equal: ",
         same_bits(last, out.view().slice(2, kLength - 1, kLength)));
  return all_good ? 0 : 1;
}
