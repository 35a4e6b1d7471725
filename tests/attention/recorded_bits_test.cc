// The bits of a few hundred calls over all entry points, layouts and dtypes, as hashes that were
// written down: a change of structure, compiler or CPU leaves them as they are. A change of the
// order of arithmetic (src/kernels/attention_order.h) does not; then they are written anew:
//
//   QUIRE_RECORD_BITS=1 build/release/tests/attention_test --gtest_filter='RecordedBits.*'
//
// once with QUIRE_ISA=avx512 and once with each ISA that multiplies bf16 itself, which has lines of
// its own: avx512_bf16 and amx. (neon_bf16 is an ISA that was only emulated; its bf16 is not
// written down.) Results in f64 leave out lse and functions of formulas, which are libm's.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "quire/quire.h"
#include "tests/support/pair_product.h"
#include "tests/support/random_tensor.h"
#include "tests/support/slow_cpu.h"

namespace quire::testing {
namespace {

constexpr const char* kFile = QUIRE_RECORDED_BITS;
constexpr DType kTypes[] = {DType::f32, DType::bf16, DType::f16, DType::f64};

using Hashes = std::map<std::string, std::string>;

Hashes read_hashes() {
  Hashes hashes;
  std::ifstream file(kFile);
  std::string hash, name;
  while (file >> hash && std::getline(file >> std::ws, name)) hashes[name] = hash;
  return hashes;
}

// FNV-1a over the elements in row-major order.
class Hash {
 public:
  void add(const ConstTensorView& view) {
    const Tensor values = contiguous(view);
    const auto* bytes = static_cast<const unsigned char*>(values.data());
    const std::size_t size = static_cast<std::size_t>(values.numel()) * dtype_size(values.dtype());
    for (std::size_t i = 0; i < size; ++i) state_ = (state_ ^ bytes[i]) * 0x100000001b3u;
  }
  std::string to_string() const {
    char text[17];
    std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(state_));
    return text;
  }

 private:
  std::uint64_t state_ = 0xcbf29ce484222325u;
};

// Compares with what was written down; with QUIRE_RECORD_BITS, writes it at the end.
class RecordedBits : public ::testing::Test {
 protected:
  RecordedBits() : hashes_(read_hashes()), records_(std::getenv("QUIRE_RECORD_BITS") != nullptr) {}

  ~RecordedBits() override {
    if (!records_) return;
    std::ofstream file(kFile);
    for (const auto& [name, hash] : hashes_) file << hash << "  " << name << "\n";
  }

  // One lane at a time, under a sanitizer or an emulator, a call is some 100 times slower: one in
  // 14 there. All of them on neon even so, which has the bits of x86 in every type.
  bool is_left_out() {
#ifdef __SANITIZE_ADDRESS__
    const bool is_slow = true;
#else
    const bool is_slow = kernels_are_slow() && current_isa() != Isa::neon;
#endif
    return is_slow && count_++ % 14 != 0;
  }

  void expect(std::string name, DType dtype, const std::vector<ConstTensorView>& results) {
    if (dtype == DType::bf16) {
      if (current_isa() == Isa::neon_bf16) return;  // kernels are compared with the rules alone
      name += pair_bits_name(current_isa());
    }
    Hash hash;
    for (const ConstTensorView& result : results) hash.add(result);
    if (records_)
      hashes_[name] = hash.to_string();
    else if (hashes_.contains(name))
      EXPECT_EQ(hash.to_string(), hashes_[name]) << name;
    else
      ADD_FAILURE() << "nothing is written down for " << name;
  }

 private:
  Hashes hashes_;
  bool records_;
  int count_ = 0;
};

struct NamedScoreMod {
  std::string name;
  std::optional<ScoreMod> mod;
  bool has_functions = false;  // libm's in f64
};

std::vector<NamedScoreMod> score_mods(DType dtype) {
  const Buffer table(random_tensor({2000}, DType::f32, 7),
                     {.name = "table", .wants_gradient = true});
  const Buffer slopes(random_tensor({4}, DType::f32, 8),
                      {.name = "slopes", .wants_gradient = true});
  std::vector<NamedScoreMod> all{
      {"plain", std::nullopt},
      {"slopes",
       ScoreMod::parse("score + slopes[h] * (kv_idx - q_idx) / 64", {{"slopes", slopes}})},
      {"table", ScoreMod::parse("score * 0.75 + table[kv_idx]", {{"table", table}})},
      {"capped", ScoreMod::parse("3 * tanh(score / 3)"), true}};
  if (dtype == DType::f64) all.pop_back();
  return all;
}

struct NamedMask {
  std::string name;
  std::optional<MaskMod> mod;
};

std::vector<NamedMask> masks() {
  return {{"full", std::nullopt},
          {"causal", mods::causal()},
          {"window", MaskMod::parse("(q_idx >= kv_idx) & (q_idx - kv_idx < 300)")},
          {"holes", MaskMod::parse("((q_idx * 7 + kv_idx) % 5 != 0) & (kv_idx > 3)")}};
}

struct DenseShape {
  std::string name;
  std::int64_t q_len, kv_len, q_begin, head_dim, v_head_dim;
};

const DenseShape kPrefill{"prefill", 70, 600, 530, 32, 40};
const DenseShape kDecode{"decode", 3, 1500, 1497, 64, 64};
const DenseShape kOdd{"odd", 37, 1100, 700, 19, 7};

struct DenseTensors {
  DenseTensors(const DenseShape& s, DType q_type, DType kv_type)
      : q(random_tensor({2, 4, s.q_len, s.head_dim}, q_type, 1)),
        k(random_tensor({2, 2, s.kv_len, s.head_dim}, kv_type, 2)),
        v(random_tensor({2, 2, s.kv_len, s.v_head_dim}, kv_type, 3)),
        d_out(random_tensor({2, 4, s.q_len, s.v_head_dim}, q_type, 4)) {}
  Tensor q, k, v, d_out;
};

FlexAttentionOptions options_of(const DenseShape& s, const NamedScoreMod& score,
                                const NamedMask& mask) {
  FlexAttentionOptions options{.score_mod = score.mod, .enable_gqa = true, .q_begin = {s.q_begin}};
  if (mask.mod.has_value())
    options.block_mask = create_block_mask(*mask.mod, 1, 1, s.q_len, s.kv_len,
                                           {.block_size = 64, .q_begin = s.q_begin});
  return options;
}

std::string type_name(DType dtype) { return std::string(dtype_name(dtype)); }

TEST_F(RecordedBits, OfDenseCalls) {
  for (const DType dtype : kTypes) {
    for (const DenseShape& shape : {kPrefill, kDecode, kOdd}) {
      const DenseTensors t(shape, dtype, dtype);
      for (const NamedScoreMod& score : score_mods(dtype)) {
        for (const NamedMask& mask : masks()) {
          if (is_left_out()) continue;
          FlexAttentionOptions options = options_of(shape, score, mask);
          AuxOutput aux;
          options.return_aux = {.lse = true, .max_scores = true};
          options.aux = &aux;
          const Tensor out = flex_attention(t.q, t.k, t.v, options);
          std::vector<ConstTensorView> results{out, *aux.max_scores};
          if (dtype != DType::f64) results.push_back(*aux.lse);
          expect(
              "dense " + shape.name + " " + type_name(dtype) + " " + score.name + " " + mask.name,
              dtype, results);
        }
      }
    }
  }
}

TEST_F(RecordedBits, OfMixedTypes) {
  const std::pair<DType, DType> pairs[] = {
      {DType::f32, DType::bf16}, {DType::f32, DType::f16}, {DType::f16, DType::bf16}};
  for (const auto& [q_type, kv_type] : pairs) {
    for (const DenseShape& shape : {kPrefill, kDecode}) {
      const DenseTensors t(shape, q_type, kv_type);
      for (const NamedScoreMod& score : score_mods(q_type)) {
        if (is_left_out()) continue;
        const Tensor out = flex_attention(t.q, t.k, t.v, options_of(shape, score, masks()[1]));
        expect("mixed " + shape.name + " " + type_name(q_type) + " " + type_name(kv_type) + " " +
                   score.name,
               q_type, {out});
      }
    }
  }
}

TEST_F(RecordedBits, OfGradients) {
  for (const DType dtype : kTypes) {
    for (const DenseShape& shape : {kPrefill, kOdd}) {
      const DenseTensors t(shape, dtype, dtype);
      for (const NamedScoreMod& score : score_mods(dtype)) {
        for (const NamedMask& mask : masks()) {
          if (is_left_out()) continue;
          FlexAttentionOptions options = options_of(shape, score, mask);
          AuxOutput aux;
          options.return_aux = {.lse = true};
          options.aux = &aux;
          const Tensor out = flex_attention(t.q, t.k, t.v, options);
          if (dtype == DType::f64) continue;  // they are computed from lse
          const AttentionGradients d = flex_attention_backward(
              {.q = t.q, .k = t.k, .v = t.v, .out = out, .lse = *aux.lse, .d_out = t.d_out},
              {.forward = options});
          std::vector<ConstTensorView> results{*d.q, *d.k, *d.v};
          for (const BufferGradient& buffer : d.buffers) results.push_back(buffer.gradient);
          expect("gradients " + shape.name + " " + type_name(dtype) + " " + score.name + " " +
                     mask.name,
                 dtype, results);
        }
      }
    }
  }
}

struct JaggedTensors {
  JaggedTensors(DType dtype, JaggedOrder order)
      : q(random_tensor(shape(4, 32, order), dtype, 11)),
        k(random_tensor(shape(2, 32, order), dtype, 12)),
        v(random_tensor(shape(2, 24, order), dtype, 13)),
        d_out(random_tensor(shape(4, 24, order), dtype, 14)),
        offsets({6}, DType::i64),
        order(order) {
    const std::int64_t values[] = {0, 5, 5, 75, 400, 401};
    std::memcpy(offsets.data(), values, sizeof values);
  }
  static Shape shape(std::int64_t heads, std::int64_t dim, JaggedOrder order) {
    return order == JaggedOrder::kTokens ? Shape{401, heads, dim} : Shape{heads, 401, dim};
  }
  Jagged of(const Tensor& values) const {
    return {.values = values, .offsets = offsets, .order = order};
  }
  Tensor q, k, v, d_out, offsets;
  JaggedOrder order;
};

TEST_F(RecordedBits, OfJaggedCalls) {
  for (const DType dtype : kTypes) {
    for (const JaggedOrder order : {JaggedOrder::kTokens, JaggedOrder::kHeads}) {
      const JaggedTensors t(dtype, order);
      const Jagged q = t.of(t.q), k = t.of(t.k), v = t.of(t.v);
      for (const NamedScoreMod& score : score_mods(dtype)) {
        for (const NamedMask& mask : masks()) {
          if (is_left_out()) continue;
          JaggedAttentionOptions options{
              .score_mod = score.mod, .mask_mod = mask.mod, .enable_gqa = true};
          AuxOutput aux;
          options.return_aux = {.lse = true};
          options.aux = &aux;
          const Tensor out = flex_attention(q, k, v, options);
          std::vector<ConstTensorView> results{out};
          AttentionGradients d;
          if (dtype != DType::f64) {
            d = flex_attention_backward(
                {.q = q, .k = k, .v = v, .out = out, .lse = *aux.lse, .d_out = t.d_out},
                {.forward = options});
            results.insert(results.end(), {*aux.lse, *d.q, *d.k, *d.v});
          }
          expect(std::string("jagged ") + (order == JaggedOrder::kTokens ? "tokens " : "heads ") +
                     type_name(dtype) + " " + score.name + " " + mask.name,
                 dtype, results);
        }
      }
    }
  }
}

TEST_F(RecordedBits, OfPagedKeys) {
  for (const DType dtype : kTypes) {
    for (const std::int64_t page_size : {1, 7, 16, 64}) {
      const std::int64_t n_pages = 1400 / page_size + 2, row = 700 / page_size + 1;
      const Tensor k = random_tensor({n_pages, 2, page_size, 64}, dtype, 21);
      const Tensor v = random_tensor({n_pages, 2, page_size, 48}, dtype, 22);
      Tensor table({2, row}, DType::i32), lengths({2}, DType::i64);
      for (std::int64_t i = 0; i < 2 * row; ++i)  // 2 * row pages in a scattered order
        table.data_as<std::int32_t>()[i] = static_cast<std::int32_t>(i * 37 % n_pages);
      lengths.data_as<std::int64_t>()[0] = 700;
      lengths.data_as<std::int64_t>()[1] = 333;
      const PagedKeys keys{k, v, table, lengths};
      for (const std::int64_t q_len : {1, 40}) {
        const Tensor q = random_tensor({2, 4, q_len, 64}, dtype, 23);
        for (const NamedScoreMod& score : score_mods(dtype)) {
          if (is_left_out()) continue;
          const Tensor out = flex_attention(q, keys,
                                            {.score_mod = score.mod,
                                             .mask_mod = mods::causal(),
                                             .enable_gqa = true,
                                             .q_begin = {660, 293}});
          expect("paged " + std::to_string(page_size) + " " + std::to_string(q_len) + " " +
                     type_name(dtype) + " " + score.name,
                 dtype, {out});
        }
      }
    }
  }
}

TEST_F(RecordedBits, OfStepsOfACache) {
  for (const DType dtype : kTypes) {
    for (const std::int64_t window : {0, 100}) {
      if (is_left_out()) continue;
      KVCache cache({.layers = 1,
                     .kv_heads = 2,
                     .head_dim = 64,
                     .v_head_dim = 32,
                     .dtype = dtype,
                     .page_size = 16,
                     .n_pages = 300});
      const SequenceId first = cache.create(), second = cache.create();
      const NewTokens prompt[] = {{first, 1300}, {second, 77}};
      cache.append(prompt);
      cache.write(0, prompt, random_tensor({1377, 2, 64}, dtype, 31),
                  random_tensor({1377, 2, 32}, dtype, 32));
      const SequenceId third = cache.fork(first, 1290);
      const NewTokens step[] = {{first, 1}, {second, 30}, {third, 4}};
      cache.append(step);
      cache.write(0, step, random_tensor({35, 2, 64}, dtype, 33),
                  random_tensor({35, 2, 32}, dtype, 34));
      const Tensor q = random_tensor({35, 8, 64}, dtype, 35);
      for (const NamedScoreMod& score : score_mods(dtype)) {
        if (score.name == "slopes") continue;  // a table of four heads
        const Tensor out = attend(cache, 0, step, q, {.score_mod = score.mod, .window = window});
        expect("attend " + std::to_string(window) + " " + type_name(dtype) + " " + score.name,
               dtype, {out});
      }
    }
  }
}

TEST_F(RecordedBits, OfSdpa) {
  const Tensor visible = [] {
    Tensor mask({70, 600}, DType::boolean);
    for (std::int64_t i = 0; i < mask.numel(); ++i)
      static_cast<unsigned char*>(mask.data())[i] = i * 31 % 7 != 0;
    return mask;
  }();
  for (const DType dtype : kTypes) {
    const Tensor bias = random_tensor({2, 1, 70, 600}, dtype, 41);
    const std::pair<std::string, SdpaOptions> kinds[] = {
        {"full", {}},
        {"causal", {.is_causal = true}},
        {"bottom right", {.is_causal = true, .alignment = CausalAlignment::kBottomRight}},
        {"bool mask", {.attn_mask = ConstTensorView(visible)}},
        {"float mask", {.attn_mask = ConstTensorView(bias)}},
        {"rule", {.attn_mask = *masks()[3].mod}},
        {"dropout", {.dropout_p = 0.25, .seed = 99, .is_causal = true}}};
    const DenseTensors t(kPrefill, dtype, dtype);
    for (const auto& [name, kind] : kinds) {
      if (is_left_out()) continue;
      SdpaOptions options = kind;
      options.enable_gqa = true;
      Tensor lse({0}, DType::f32);
      options.lse = &lse;
      const Tensor out = scaled_dot_product_attention(t.q, t.k, t.v, options);
      std::vector<ConstTensorView> results{out};
      SdpaGradients d;
      if (dtype != DType::f64) {
        d = scaled_dot_product_attention_backward(
            SdpaBackwardInputs{
                .q = t.q, .k = t.k, .v = t.v, .out = out, .lse = lse, .d_out = t.d_out},
            options);
        results.insert(results.end(), {lse, *d.q, *d.k, *d.v});
      }
      expect("sdpa " + name + " " + type_name(dtype), dtype, results);
    }
  }
}

TEST_F(RecordedBits, OfJaggedSdpa) {
  for (const DType dtype : kTypes) {
    const JaggedTensors t(dtype, JaggedOrder::kTokens);
    for (const double dropout : {0.0, 0.5}) {
      if (is_left_out()) continue;
      const Tensor out = scaled_dot_product_attention(
          t.of(t.q), t.of(t.k), t.of(t.v),
          {.dropout_p = dropout, .seed = 5, .is_causal = true, .enable_gqa = true});
      expect(std::string("jagged sdpa ") + (dropout > 0 ? "dropout " : "") + type_name(dtype),
             dtype, {out});
    }
  }
}

}  // namespace
}  // namespace quire::testing
