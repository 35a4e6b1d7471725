// Attention over quantised keys and values: bits of the call over what they decode to, for every
// format, layout, kernel and mod; error against f64; gradients of q; what is refused.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>

#include "kernels/attention_order.h"
#include "quire/error.h"
#include "quire/executor.h"
#include "quire/flex_attention_backward.h"
#include "quire/isa.h"
#include "quire/jagged.h"
#include "quire/mods.h"
#include "quire/paged.h"
#include "tests/support/attention_case.h"
#include "tests/support/row_rules.h"
#include "tests/support/same_bits.h"
#include "tests/support/slow_cpu.h"

namespace quire {
namespace {

// What the call throws says so.
template <class Call>
void expect_error(const Call& call, const std::string& text) {
  try {
    call();
    ADD_FAILURE() << "no error: " << text;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
}

using testing::AttentionCase;
using testing::AttentionTensors;
using testing::AttentionValues;
using testing::same_bits;

struct Mods {
  const char* name;
  std::optional<ScoreMod> score = {};
  std::optional<MaskMod> mask = {};
};

std::vector<Mods> all_mods() {
  return {
      {"none"},
      {"causal", {}, mods::causal()},
      {"alibi and window", ScoreMod::parse("score + 0.01 * (h + 1) * (kv_idx - q_idx)"),
       mods::sliding_window(300)},
      {"soft cap", ScoreMod::parse("20 * tanh(score / 20)")},
      {"holes", {}, MaskMod::parse("((kv_idx * 7 + q_idx) % 5 != 2) & (kv_idx // 40 % 3 != 1)")}};
}

// What a call gives, lse and all.
struct Result {
  Tensor out, lse, max_scores;
};

template <class Call>
Result run(AttentionOptions options, const Call& call) {
  AuxOutput aux;
  options.return_aux = {.lse = true, .max_scores = true};
  options.aux = &aux;
  options.enable_gqa = true;
  Tensor out = call(options);
  return {std::move(out), *aux.lse, *aux.max_scores};
}

void expect_same(const Result& a, const Result& b, const std::string& what) {
  EXPECT_TRUE(same_bits(a.out, b.out)) << what;
  EXPECT_TRUE(same_bits(a.lse, b.lse)) << what;
  EXPECT_TRUE(same_bits(a.max_scores, b.max_scores)) << what;
}

struct Coded {
  AttentionTensors numbers;
  QuantizedTensor k, v;
  Tensor k_numbers, v_numbers;

  Coded(const AttentionCase& c, const KVFormat& k_format, const KVFormat& v_format)
      : numbers(c, 11),
        k(quantize(numbers.k, k_format)),
        v(quantize(numbers.v, v_format)),
        k_numbers(dequantize(k)),
        v_numbers(dequantize(v)) {}
};

AttentionCase small(std::int64_t q_len, DType q_dtype = DType::f32) {
  return {.batch = 2,
          .q_heads = 4,
          .kv_heads = 2,
          .q_len = q_len,
          .kv_len = 1300,
          .head_dim = 64,
          .v_head_dim = 96,
          .q_dtype = q_dtype};
}

TEST(QuantisedAttention, BitsOfTheNumbersCodesDecodeTo) {
  testing::FewerIfEmulated fewer(7);
  for (const std::string& name : KVFormat::names()) {
    for (const std::int64_t q_len : {1, 5, 70}) {
      const Coded t(small(q_len), KVFormat::of(name), KVFormat::of(name));
      for (const Mods& mods : all_mods()) {
        if (fewer.leaves_out()) continue;
        const AttentionOptions options{
            .score_mod = mods.score, .mask_mod = mods.mask, .q_begin = {1300 - q_len}};
        const Result got = run(options, [&](const AttentionOptions& o) {
          return flex_attention(t.numbers.q, t.k, t.v, o);
        });
        const Result wanted = run(options, [&](const AttentionOptions& o) {
          return flex_attention(t.numbers.q, t.k_numbers, t.v_numbers, o);
        });
        expect_same(got, wanted, name + " " + mods.name + " " + std::to_string(q_len));
      }
    }
  }
}

TEST(QuantisedAttention, KeysAndValuesOfDifferentFormatsAndQueriesOfAnyType) {
  for (const DType dtype : {DType::f16, DType::f64}) {
    for (const std::int64_t q_len : {2, 40}) {
      const Coded t(small(q_len, dtype), KVFormat::of("u8"), KVFormat::of("int4"));
      const auto call = [&](const KVView& k, const KVView& v) {
        return run({},
                   [&](const AttentionOptions& o) { return flex_attention(t.numbers.q, k, v, o); });
      };
      expect_same(call(t.k, t.v), call(t.k_numbers, t.v_numbers), "both");
      expect_same(call(t.k, t.v_numbers), call(t.k_numbers, t.v_numbers), "keys");
      expect_same(call(t.k_numbers, t.v), call(t.k_numbers, t.v_numbers), "values");
    }
  }
}

TEST(QuantisedAttention, OddHeadDimsAndShortSequences) {
  for (const char* name : {"int8", "int8_channel", "u8", "fp8_e4m3", "fp8_e5m2"}) {
    for (const std::int64_t dim : {1, 7, 17, 33, 80, 100}) {
      for (const std::int64_t kv_len : {1, 5, 16, 31, 257}) {
        for (const std::int64_t q_len : {1, 19}) {
          AttentionCase c{.q_heads = 3, .kv_heads = 3, .q_len = q_len, .kv_len = kv_len};
          c.head_dim = dim;
          c.v_head_dim = dim;
          const Coded t(c, KVFormat::of(name), KVFormat::of(name));
          const auto call = [&](const KVView& k, const KVView& v) {
            return run({}, [&](const AttentionOptions& o) {
              return flex_attention(t.numbers.q, k, v, o);
            });
          };
          expect_same(call(t.k, t.v), call(t.k_numbers, t.v_numbers),
                      std::string(name) + " " + std::to_string(dim));
        }
      }
    }
  }
}

TEST(QuantisedAttention, JaggedSequencesAreOneByOne) {
  const std::int64_t total = 700;
  const std::vector<std::int64_t> offsets{0, 0, 300, 301, 690};
  const Tensor at = Tensor::from<std::int64_t>(offsets);
  for (const std::string& name : KVFormat::names()) {
    for (const JaggedOrder order : {JaggedOrder::kTokens, JaggedOrder::kHeads}) {
      const bool by_token = order == JaggedOrder::kTokens;
      const AttentionTensors t({.q_heads = 4,
                                .kv_heads = 2,
                                .q_len = total,
                                .kv_len = total,
                                .head_dim = 32,
                                .v_head_dim = 32},
                               3);
      const auto values = [&](const ConstTensorView& x) {
        const ConstTensorView heads = x.select(0, 0);
        return contiguous(by_token ? heads.transpose(0, 1) : heads);
      };
      const Tensor q = values(t.q);
      const int head_axis = by_token ? 1 : 0;
      const QuantizedTensor k = quantize(values(t.k), KVFormat::of(name), {.head_axis = head_axis});
      const QuantizedTensor v = quantize(values(t.v), KVFormat::of(name), {.head_axis = head_axis});
      const Tensor k_numbers = dequantize(k, DType::f32, head_axis);
      const Tensor v_numbers = dequantize(v, DType::f32, head_axis);
      const auto coded = [&](const QuantizedTensor& x) {
        return Jagged{.values = x.codes,
                      .offsets = at,
                      .order = order,
                      .scales = x.scales,
                      .format = x.format};
      };
      const auto plain = [&](const Tensor& x) {
        return Jagged{.values = x, .offsets = at, .order = order};
      };
      const AttentionOptions options{.score_mod = ScoreMod::parse("score + 0.1 * (h - b)"),
                                     .mask_mod = mods::causal()};
      expect_same(run(options,
                      [&](const AttentionOptions& o) {
                        return flex_attention(plain(q), coded(k), coded(v), o);
                      }),
                  run(options,
                      [&](const AttentionOptions& o) {
                        return flex_attention(plain(q), plain(k_numbers), plain(v_numbers), o);
                      }),
                  name);
    }
  }
}

// Rows of codes and scales moved to pages in a shuffled order.
Tensor in_pages(const Tensor& rows, const std::vector<std::int64_t>& pages,
                std::int64_t page_size) {
  Shape shape = rows.shape();  // [1, heads, length, ...]
  const std::int64_t length = shape[2];
  shape[0] = static_cast<std::int64_t>(pages.size()) + 1;
  shape[2] = page_size;
  Tensor pool(shape, rows.dtype());
  std::memset(pool.data(), 0xff, static_cast<std::size_t>(pool.numel()) * dtype_size(pool.dtype()));
  std::int64_t row = static_cast<std::int64_t>(dtype_size(rows.dtype()));
  for (std::size_t axis = 3; axis < shape.rank(); ++axis) row *= shape[axis];
  for (std::int64_t h = 0; h < shape[1]; ++h) {
    for (std::int64_t t = 0; t < length; ++t) {
      const std::int64_t page = pages[static_cast<std::size_t>(t / page_size)];
      std::memcpy(static_cast<char*>(pool.data()) +
                      ((page * shape[1] + h) * page_size + t % page_size) * row,
                  static_cast<const char*>(rows.data()) + (h * length + t) * row,
                  static_cast<std::size_t>(row));
    }
  }
  return pool;
}

TEST(QuantisedAttention, PagesOfAnySizeHaveTheBitsOfDenseKeys) {
  testing::FewerIfEmulated fewer(7);
  const std::int64_t length = 1100;
  for (const std::string& name : KVFormat::names()) {
    for (const std::int64_t page_size : {1, 7, 16, 64, 300}) {
      for (const std::int64_t q_len : {1, 40, -1, -40}) {  // negative: queries of bf16
        if (fewer.leaves_out()) continue;
        AttentionCase c = small(std::abs(q_len), q_len < 0 ? DType::bf16 : DType::f32);
        c.batch = 1;
        c.kv_len = length;
        const Coded t(c, KVFormat::of(name), KVFormat::of(name));
        std::vector<std::int64_t> pages(
            static_cast<std::size_t>((length + page_size - 1) / page_size));
        for (std::size_t i = 0; i < pages.size(); ++i) pages[i] = static_cast<std::int64_t>(i);
        std::shuffle(pages.begin(), pages.end(), std::mt19937_64(4));
        const bool by_row = t.k.scales.rank() > 2;
        const auto move = [&](const QuantizedTensor& x) {
          return QuantizedTensor{in_pages(x.codes, pages, page_size),
                                 by_row ? in_pages(x.scales, pages, page_size) : x.scales,
                                 x.format};
        };
        const QuantizedTensor k = move(t.k), v = move(t.v);
        const Tensor table =
            Tensor::from<std::int64_t>(pages, {1, static_cast<std::int64_t>(pages.size())});
        const Tensor lengths = Tensor::from<std::int64_t>({length});
        const AttentionOptions options{.mask_mod = mods::causal(), .q_begin = {length - c.q_len}};
        const std::string what = name + " " + std::to_string(page_size);
        expect_same(run(options,
                        [&](const AttentionOptions& o) {
                          return flex_attention(t.numbers.q, PagedKeys{k, v, table, lengths}, o);
                        }),
                    run(options,
                        [&](const AttentionOptions& o) {
                          return flex_attention(t.numbers.q, t.k, t.v, o);
                        }),
                    what);
      }
    }
  }
}

class QuantisedBits : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(, QuantisedBits, ::testing::Values(DType::f32, DType::bf16, DType::f16),
                         [](const auto& one) { return std::string(dtype_name(one.param)); });

TEST_P(QuantisedBits, DoNotDependOnBatchThreadsChunksOrKernel) {
  for (const std::string& name : KVFormat::names()) {
    const Coded t(small(40, GetParam()), KVFormat::of(name, name == "int4"),
                  KVFormat::of(name, name == "int4"));
    const auto causal = [](std::int64_t begin) {
      return AttentionOptions{.mask_mod = mods::causal(), .q_begin = {begin}};
    };
    const Result all = run(causal(1260), [&](const AttentionOptions& o) {
      return flex_attention(t.numbers.q, t.k, t.v, o);
    });
    const auto part = [](const Tensor& x, std::int64_t b, std::int64_t begin, std::int64_t end) {
      return x.view().slice(0, b, b + 1).slice(2, begin, end);
    };
    // One by one and in chunks: decode and prefill.
    for (const std::int64_t chunk : {1, 3, 40}) {
      for (std::int64_t begin = 0; begin < 40; begin += chunk) {
        const std::int64_t end = std::min<std::int64_t>(begin + chunk, 40);
        const auto shape_of = [](const Tensor& x) { return x.view().slice(0, 1, 2); };
        const bool by_row = t.k.scales.rank() > 2;
        const KVView k(shape_of(t.k.codes), by_row ? shape_of(t.k.scales) : t.k.scales.view(),
                       t.k.format);
        const KVView v(shape_of(t.v.codes), by_row ? shape_of(t.v.scales) : t.v.scales.view(),
                       t.v.format);
        const Result one = run(causal(1260 + begin), [&](const AttentionOptions& o) {
          return flex_attention(t.numbers.q.slice(0, 1, 2).slice(2, begin, end), k, v, o);
        });
        EXPECT_TRUE(same_bits(one.out, part(all.out, 1, begin, end))) << name << " " << chunk;
        EXPECT_TRUE(same_bits(one.lse, part(all.lse, 1, begin, end))) << name << " " << chunk;
      }
    }
    for (const int threads : {1, 3}) {
      const std::shared_ptr<Executor> pool = make_thread_pool(threads);
      AttentionOptions options = causal(1260);
      options.executor = pool.get();
      expect_same(
          run(options,
              [&](const AttentionOptions& o) { return flex_attention(t.numbers.q, t.k, t.v, o); }),
          all, name);
    }
  }
}

// Within twice the error of a plain attention in f32 over the same numbers.
TEST(QuantisedAttention, ErrorAgainstF64) {
  testing::FewerIfEmulated fewer(3);
  for (const std::string& name : KVFormat::names()) {
    for (const bool hadamard : {false, true}) {
      for (const std::int64_t q_len : {1, 33}) {
        if (fewer.leaves_out()) continue;
        AttentionCase c = small(q_len);
        c.score_mod = ScoreMod::parse("score + 0.02 * (kv_idx - q_idx)");
        Coded t(c, KVFormat::of(name, hadamard), KVFormat::of(name, hadamard));
        const Result got = run({.score_mod = c.score_mod}, [&](const AttentionOptions& o) {
          return flex_attention(t.numbers.q, t.k, t.v, o);
        });
        t.numbers.k = t.k_numbers;
        t.numbers.v = t.v_numbers;
        const AttentionValues exact = testing::exact(c, t.numbers);
        const AttentionValues naive = testing::naive(c, t.numbers);
        // A rotation adds its own roundings, 7 additions of 64 or 96 numbers.
        const double bound = (hadamard ? 4 : 2) * testing::largest_error(naive.out, exact.out);
        EXPECT_LE(testing::largest_error(got.out.to(DType::f64), exact.out), bound)
            << name << " " << hadamard << " " << q_len;
      }
    }
  }
}

TEST_P(QuantisedBits, HiddenCodesAreNeverSeen) {
  // NaN in the scale of a key that nobody sees, and in one that a row does see.
  Coded t(small(3, GetParam()), KVFormat::of("int8"), KVFormat::of("int8"));
  const AttentionOptions options{.mask_mod = MaskMod::parse("(kv_idx != 700) & (kv_idx != 3)")};
  const auto call = [&] {
    return run(options,
               [&](const AttentionOptions& o) { return flex_attention(t.numbers.q, t.k, t.v, o); });
  };
  const Result before = call();
  for (const std::int64_t key : {3, 700}) {
    t.k.scales.at<float>({0, 0, key}) = std::numeric_limits<float>::quiet_NaN();
    t.v.scales.at<float>({1, 1, key}) = std::numeric_limits<float>::infinity();
  }
  expect_same(call(), before, "hidden");
  t.v.scales.at<float>({1, 1, 9}) = std::numeric_limits<float>::quiet_NaN();
  const Result seen = call();
  EXPECT_TRUE(std::isnan(seen.out.view().load_float({1, 3, 0, 5})));
  EXPECT_FALSE(std::isnan(seen.out.view().load_float({0, 3, 0, 5})));
}

// Every code of one byte is the number it stands for, and its scale a factor: row i sees key i
// alone, whose channels are all code i, and asks for one of them. Prefill, and decode of one row.
TEST_P(QuantisedBits, EveryCodeOfOneByteIsItsNumber) {
  constexpr std::int64_t kCodes = 256, kDim = 48;
  for (const char* name : {"int8", "fp8_e4m3", "fp8_e5m2"}) {
    const KVFormat format = KVFormat::of(name);
    const bool by_row = std::string(name) == "int8";
    QuantizedTensor kv{Tensor(Shape{1, 1, kCodes, kDim}, by_row ? DType::i8 : DType::u8),
                       Tensor(by_row ? Shape{1, 1, kCodes} : Shape{1}, DType::f32), format};
    for (std::int64_t i = 0; i < kCodes; ++i)
      std::memset(static_cast<char*>(kv.codes.data()) + i * kDim, static_cast<int>(i), kDim);
    for (std::int64_t i = 0; i < kv.scales.numel(); ++i) kv.scales.data_as<float>()[i] = 0.25f;
    Tensor q(Shape{1, 1, kCodes, kDim}, DType::f32);
    for (std::int64_t i = 0; i < kCodes; ++i) q.at<float>({0, 0, i, i % kDim}) = 1;
    q = q.to(GetParam());
    const Tensor numbers = dequantize(kv);
    const AttentionOptions options{
        .mask_mod = MaskMod::parse("q_idx == kv_idx"), .scale = 1, .q_begin = {0}};
    const auto expect_numbers = [&](const Result& got, std::int64_t begin, std::int64_t count) {
      for (std::int64_t i = 0; i < count; ++i) {
        const double number = numbers.view().load_float({0, 0, begin + i, 0});
        const double lse = got.lse.view().load_float({0, 0, i});
        const double out = got.out.view().load_float({0, 0, i, kDim - 1});
        // 0 * infinity in the other channels is NaN.
        const bool is_finite = std::isfinite(number);
        EXPECT_TRUE(is_finite ? lse == number : std::isnan(lse)) << name << " " << begin + i;
        EXPECT_TRUE(is_finite ? out == number : !std::isfinite(out)) << name << " " << begin + i;
      }
    };
    expect_numbers(
        run(options, [&](const AttentionOptions& o) { return flex_attention(q, kv, kv, o); }), 0,
        kCodes);
    for (std::int64_t i = 0; i < kCodes; ++i) {
      AttentionOptions one = options;
      one.q_begin = {i};
      expect_numbers(run(one,
                         [&](const AttentionOptions& o) {
                           return flex_attention(q.view().slice(2, i, i + 1), kv, kv, o);
                         }),
                     i, 1);
    }
  }
}

// Queries of bf16 over codes: as near to f64 as over the numbers in bf16, whose roundings, of
// weights to bf16 and of the output, are the same where the ISA multiplies pairs. Dropout, which
// writes weights anew, keeps prefill and decode equal.
TEST(QuantisedAttention, QueriesOfBf16AgainstF64) {
  testing::FewerIfEmulated fewer(5);
  for (const std::string& name : KVFormat::names()) {
    const bool has_groups = name == "int4" || name == "q8_0" || name == "q4_0";
    for (const std::int64_t dim : {6, 17, 64, 80, 128, 200, 224}) {
      for (const std::int64_t q_len : {1, 6, 33}) {
        if ((has_groups && dim % 32 != 0) || fewer.leaves_out()) continue;
        AttentionCase c = small(q_len, DType::bf16);
        c.head_dim = c.v_head_dim = dim;
        c.kv_len = 333;
        Coded t(c, KVFormat::of(name), KVFormat::of(name));
        const Result got = run({}, [&](const AttentionOptions& o) {
          return flex_attention(t.numbers.q, t.k, t.v, o);
        });
        t.numbers.k = t.k_numbers;
        t.numbers.v = t.v_numbers;
        const AttentionValues exact = testing::exact(c, t.numbers);
        double largest = 0;
        for (std::int64_t i = 0; i < exact.out.numel(); ++i)
          largest = std::max(largest, std::abs(exact.out.data_as<double>()[i]));
        EXPECT_LE(testing::largest_error(got.out.to(DType::f64), exact.out), largest * 0x1p-7)
            << name << " " << dim << " " << q_len;
      }
    }
  }
}

// The codes of a row of batch entry 1, key head 1, as integers, and what takes these back, by the
// rules.
struct CodedRow {
  std::vector<float> numbers;
  float scale;

  CodedRow(const QuantizedTensor& x, std::int64_t key) {
    const std::int64_t dims = x.shape()[3];
    const std::string name = x.format.name();
    const auto byte = [&](std::int64_t i) {
      if (name == "int8" || name == "int8_channel")
        return static_cast<std::uint8_t>(x.codes.at<std::int8_t>({1, 1, key, i}));
      return x.codes.at<std::uint8_t>({1, 1, key, i});
    };
    const auto half = [&](std::int64_t i) {
      const std::uint8_t bytes[] = {byte(i), byte(i + 1)};
      Float16 number;
      std::memcpy(&number, bytes, 2);
      return static_cast<float>(number);
    };
    if (name == "int8") {
      for (std::int64_t d = 0; d < dims; ++d) numbers.push_back(static_cast<std::int8_t>(byte(d)));
      scale = x.scales.at<float>({1, 1, key});
      return;
    }
    const bool by_channel = name == "int8_channel";
    const std::int64_t group = by_channel ? 1 : name == "u8" ? dims : 32, groups = dims / group;
    const int bits = name == "int4" || name == "q4_0" ? 4 : 8;
    std::vector<float> reach, offset, bound;
    for (std::int64_t g = 0; g < groups; ++g) {
      float s = 0, a = 0;
      if (by_channel) {
        s = x.scales.at<float>({1, g});
      } else if (name == "u8") {
        s = x.scales.at<float>({1, 1, key, 0});
        a = (128 - x.scales.at<float>({1, 1, key, 1})) * s;
      } else if (name == "int4") {
        s = static_cast<float>(x.scales.view().load_float({1, 1, key, g, 0}));
        a = 8 * s + static_cast<float>(x.scales.view().load_float({1, 1, key, g, 1}));
      } else {
        s = half(g * (name == "q8_0" ? 34 : 18));
      }
      reach.push_back(std::ldexp(s, bits - 1));
      offset.push_back(a);
      bound.push_back(std::abs(reach.back()) + std::abs(a));
    }
    scale = testing::Integers(bound, kernels::kRowShift).inverse;
    for (std::int64_t d = 0; d < dims; ++d) {
      const auto g = static_cast<std::size_t>(d / group);
      const std::int64_t in_group = d % 32;
      std::int64_t code = 0;
      if (by_channel) code = static_cast<std::int8_t>(byte(d));
      if (name == "u8") code = std::int64_t{byte(d)} - 128;
      if (name == "q8_0")
        code = static_cast<std::int8_t>(byte(static_cast<std::int64_t>(g) * 34 + 2 + in_group));
      if (bits == 4) {
        const std::int64_t block = name == "int4" ? 16 : 18, skipped = name == "int4" ? 0 : 2;
        const std::uint8_t both =
            byte(static_cast<std::int64_t>(g) * block + skipped + in_group % 16);
        code = (in_group < 16 ? both & 15 : both >> 4) - 8;
      }
      const auto factor = static_cast<std::int64_t>(std::nearbyint(16 * reach[g] / scale)) | 1;
      const auto shift = static_cast<std::int64_t>(std::nearbyint(offset[g] / scale));
      const std::int64_t product = code * factor + (std::int64_t{1} << (bits + 2));
      numbers.push_back(static_cast<float>((product >> (bits + 3)) + shift));
    }
  }
};

// Row q_idx of batch entry 1, head 3, by the rules of integers.
testing::RowOutput<float> integer_row(const Coded& t, std::int64_t q_idx,
                                      const std::function<bool(std::int64_t)>& visible) {
  const std::int64_t b = 1, h = 3, dims = t.numbers.q.shape()[3];
  std::vector<CodedRow> keys, values;
  testing::RowInput<float> input;
  for (std::int64_t d = 0; d < dims; ++d)
    input.q.push_back(static_cast<float>(t.numbers.q.load_float({b, h, q_idx, d})));
  input.keys = t.k.codes.shape()[2];
  for (std::int64_t i = 0; i < input.keys; ++i) {
    keys.emplace_back(t.k, i);
    values.emplace_back(t.v, i);
  }
  const auto at = [](std::int64_t i) { return static_cast<std::size_t>(i); };
  input.value_dims = static_cast<int>(t.v.shape()[3]);
  input.key = [&](std::int64_t i) { return keys[at(i)].numbers.data(); };
  input.value = [&](std::int64_t i) { return values[at(i)].numbers.data(); };
  input.key_scale = [&](std::int64_t i) { return keys[at(i)].scale; };
  input.value_scale = [&](std::int64_t i) { return values[at(i)].scale; };
  if (t.k.format.name() != "int8")
    input.query_shift = kernels::row_query_shift(static_cast<int>(dims));
  if (t.v.format.name() != "int8") input.weight_shift = kernels::kRowWeightShift;
  input.visible = visible;
  input.scale = 1 / std::sqrt(static_cast<double>(dims));
  return testing::row_by_rules(input);
}

// Whole calls over codes that are multiplied as integers: the rules, bit by bit, in decode and
// prefill, on every ISA.
void expect_integer_rules(DType dtype, const char* k_format, const char* v_format, std::int64_t dim,
                          std::int64_t v_dim) {
  struct Rule {
    const char* text;
    bool (*visible)(std::int64_t q_idx, std::int64_t kv_idx);
  };
  const Rule rules[] = {
      {"kv_idx >= 0", [](std::int64_t, std::int64_t) { return true; }},
      {"kv_idx % 7 != q_idx % 5", [](std::int64_t q, std::int64_t kv) { return kv % 7 != q % 5; }},
      {"kv_idx == 1100", [](std::int64_t, std::int64_t kv) { return kv == 1100; }}};
  for (const std::int64_t q_len : {1, 3, 30}) {
    AttentionCase c = small(q_len, dtype);
    c.head_dim = dim;
    c.v_head_dim = v_dim;
    const Coded t(c, KVFormat::of(k_format), KVFormat::of(v_format));
    for (const Rule& rule : rules) {
      const std::int64_t q_idx = q_len / 2;
      const auto visible = [&](std::int64_t i) { return rule.visible(q_idx, i); };
      const testing::RowOutput<float> wanted = integer_row(t, q_idx, visible);
      for (const Isa isa : available_isas()) {
        const ScopedIsa scoped(isa);
        const Result got = run(
            {.mask_mod = MaskMod::parse(rule.text)},
            [&](const AttentionOptions& o) { return flex_attention(t.numbers.q, t.k, t.v, o); });
        const std::string what = std::string(isa_name(isa)) + " " + k_format + " " + v_format +
                                 " " + std::to_string(dim) + " " + std::to_string(q_len) + " " +
                                 rule.text;
        EXPECT_EQ(static_cast<float>(got.lse.view().load_float({1, 3, q_idx})), wanted.lse) << what;
        for (std::int64_t d = 0; d < v_dim; ++d) {
          const float out = wanted.out[static_cast<std::size_t>(d)];
          const double rounded = dtype == DType::f16 ? static_cast<double>(Float16(out))
                                                     : static_cast<double>(BFloat16(out));
          ASSERT_EQ(got.out.view().load_float({1, 3, q_idx, d}), rounded) << what << " " << d;
        }
      }
    }
  }
}

TEST(QuantisedAttention, IntegersFollowTheRules) {
  for (const std::int64_t dim : {2, 6, 32, 80, 128, 258, 512})
    expect_integer_rules(DType::f16, "int8", "int8", dim, dim == 512 ? 40 : dim);
  expect_integer_rules(DType::bf16, "int8", "int8", 128, 128);
}

TEST(QuantisedAttention, IntegersMadeOfCodesFollowTheRules) {
  for (const char* name : {"u8", "int4", "q8_0", "q4_0", "int8_channel"}) {
    for (const std::int64_t dim : {32, 64, 128, 256})
      expect_integer_rules(DType::bf16, name, name, dim, dim);
    expect_integer_rules(DType::bf16, name, "int8", 96, 50);
    expect_integer_rules(DType::bf16, "int8", name, 34, 288);
  }
  for (const char* name : {"u8", "int8_channel"})
    for (const std::int64_t dim : {2, 50, 80})
      expect_integer_rules(DType::bf16, name, name, dim, dim + 1);
}

// Queries and weights as integers lose less than rounding the outputs to f16 does.
TEST(QuantisedAttention, IntegersAreAsExactAsTheOutputs) {
  for (const std::int64_t q_len : {1, 33}) {
    for (const std::int64_t dim : {64, 128}) {
      AttentionCase c = small(q_len, DType::f16);
      c.head_dim = c.v_head_dim = dim;
      Coded t(c, KVFormat::of("int8"), KVFormat::of("int8"));
      const Result got = run(
          {}, [&](const AttentionOptions& o) { return flex_attention(t.numbers.q, t.k, t.v, o); });
      t.numbers.k = t.k_numbers;
      t.numbers.v = t.v_numbers;
      const AttentionValues exact = testing::exact(c, t.numbers);
      const Tensor out = got.out.to(DType::f64), rounded = exact.out.to(DType::f16).to(DType::f64);
      double error = 0, rounding = 0;
      for (std::int64_t i = 0; i < exact.out.numel(); ++i) {
        const double wanted = exact.out.data_as<double>()[i];
        error += std::pow(out.data_as<double>()[i] - wanted, 2);
        rounding += std::pow(rounded.data_as<double>()[i] - wanted, 2);
      }
      EXPECT_LE(std::sqrt(error / rounding), 1.25) << q_len << " " << dim;
    }
  }
}

// Few keys of many, which decode puts side by side; with queries of f16 as integers.
TEST(QuantisedAttention, ChosenKeysAreThoseAMaskShows) {
  AttentionCase c = small(1, DType::f16);
  const Coded t(c, KVFormat::of("int8"), KVFormat::of("int8"));
  Tensor chosen(Shape{2, 1, 40}, DType::i32);
  for (int i = 0; i < 80; ++i) chosen.data_as<std::int32_t>()[i] = i % 40 * 31 + i / 40;
  const auto call = [&](const AttentionOptions& options) {
    return run(options,
               [&](const AttentionOptions& o) { return flex_attention(t.numbers.q, t.k, t.v, o); });
  };
  expect_same(call({.key_indices = chosen.view()}),
              call({.mask_mod = MaskMod::parse("(kv_idx % 31 == b) & (kv_idx < 31 * 40)")}),
              "int8");
}

// Few keys of many, which decode puts side by side.
TEST(QuantisedAttention, ChosenKeysHaveTheirScales) {
  for (const std::string& name : KVFormat::names()) {
    const Coded t(small(1), KVFormat::of(name), KVFormat::of(name));
    Tensor chosen(Shape{2, 1, 30}, DType::i32);
    for (int i = 0; i < 60; ++i) chosen.data_as<std::int32_t>()[i] = i % 30 * 43 + i % 7;
    const AttentionOptions options{.key_indices = chosen.view()};
    const auto call = [&](const KVView& k, const KVView& v) {
      return run(options,
                 [&](const AttentionOptions& o) { return flex_attention(t.numbers.q, k, v, o); });
    };
    expect_same(call(t.k, t.v), call(t.k_numbers, t.v_numbers), name);
  }
}

TEST(QuantisedAttention, DropoutOverCodesIsThatOfPrefillAndDecode) {
  const Coded t(small(20, DType::bf16), KVFormat::of("int8"), KVFormat::of("fp8_e4m3"));
  const auto options = [](std::int64_t begin) {
    return AttentionOptions{
        .mask_mod = mods::causal(), .q_begin = {begin}, .dropout_p = 0.3, .seed = 9};
  };
  const Result all = run(options(1280), [&](const AttentionOptions& o) {
    return flex_attention(t.numbers.q, t.k, t.v, o);
  });
  for (std::int64_t i = 0; i < 20; ++i) {
    const Result one = run(options(1280 + i), [&](const AttentionOptions& o) {
      return flex_attention(t.numbers.q.slice(2, i, i + 1), t.k, t.v, o);
    });
    EXPECT_TRUE(same_bits(one.out, all.out.view().slice(2, i, i + 1))) << i;
  }
}

TEST(QuantisedAttention, GradientsOfQueriesAreThoseOverTheNumbers) {
  const Coded t(small(20), KVFormat::of("int8"), KVFormat::of("int4"));
  const AttentionOptions options{.score_mod = ScoreMod::parse("20 * tanh(score / 20)"),
                                 .enable_gqa = true};
  const Result forward = run(
      options, [&](const AttentionOptions& o) { return flex_attention(t.numbers.q, t.k, t.v, o); });
  const Tensor d_out = forward.out.clone();
  const auto gradients = [&](const KVView& k, const KVView& v) {
    return flex_attention_backward(BackwardInputs{.q = t.numbers.q,
                                                  .k = k,
                                                  .v = v,
                                                  .out = forward.out,
                                                  .lse = forward.lse,
                                                  .d_out = d_out.view()},
                                   {.forward = options, .wanted = {.k = false, .v = false}});
  };
  EXPECT_TRUE(same_bits(*gradients(t.k, t.v).q, *gradients(t.k_numbers, t.v_numbers).q));
  expect_error(
      [&] {
        flex_attention_backward(BackwardInputs{.q = t.numbers.q,
                                               .k = t.k,
                                               .v = t.v,
                                               .out = forward.out,
                                               .lse = forward.lse,
                                               .d_out = d_out.view()},
                                {.forward = options});
      },
      "[flex_attention_backward] key is quantised (int8) and has no gradient");
}

TEST(QuantisedAttention, WhatDoesNotFitIsNamed) {
  const Coded t(small(2), KVFormat::of("int8"), KVFormat::of("u8"));
  const AttentionOptions options{.enable_gqa = true};
  const auto refuse = [&](const KVView& k, const std::string& text) {
    expect_error([&] { flex_attention(t.numbers.q, k, t.v, options); }, text);
  };
  const KVFormat int8 = KVFormat::of("int8");
  refuse(
      KVView(t.k.codes, {}, int8),
      "[flex_attention] the scales of key (int8 [2, 2, 1300, 64]) must be [2, 2, 1300]; got [0]");
  refuse(KVView(t.k.codes, t.k.scales.to(DType::f64), int8),
         "the scales of key (int8) must be f32; got f64");
  refuse(KVView(t.k.codes, t.v.scales, int8), "must be [2, 2, 1300]; got [2, 2, 1300, 2]");
  refuse(KVView(t.k.codes, t.k.scales, KVFormat::of("u8")), "the codes of key (u8) must be u8");
  refuse(KVView(t.k.codes, t.k.scales, KVFormat()), "key must be f32, f64, bf16 or f16; got i8");
  refuse(KVView(t.k_numbers, t.k.scales, KVFormat()), "key has scales, and no format");
  refuse(KVView(t.numbers.k.slice(3, 0, 32), {}, KVFormat()), "same head dim");
  AttentionPlan plan(AttentionShape::of(t.numbers.q, t.k, t.v), options);
  Tensor out(Shape{2, 4, 2, 96}, DType::f32);
  expect_error([&] { plan.run(t.numbers.q, t.k_numbers, t.v, {.out = out.view()}); },
               "the plan was made for a key of int8 [2, 2, 1300, 64]; got f32 [2, 2, 1300, 64]");
  plan.run(t.numbers.q, t.k, t.v, {.out = out.view()});
  EXPECT_TRUE(same_bits(out, flex_attention(t.numbers.q, t.k, t.v, options)));
}

}  // namespace
}  // namespace quire
