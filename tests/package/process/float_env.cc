// Calls of every kind in a floating-point environment that is not the default, against the same
// calls in the default one, which run first and in a process where nothing was changed yet. Built
// by test_process.py, with -ffast-math among others, against the library.
//
//   float_env MODE   plain | ftz | up | down | zero | traps: what is set before the second round
#include <quire/quire.h>
#include <quire/quire_c.h>

#include <cfenv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

using namespace quire;

namespace {

constexpr unsigned kDefault = 0x1f80, kFtzDaz = 0x8040, kFlags = 0x3f;

// Bit patterns that a wrong environment changes: subnormals, numbers that add up inexactly.
Tensor numbers(const Shape& shape, unsigned seed, bool with_odd_ones) {
  Tensor values(shape, DType::f32);
  auto* bits = static_cast<std::uint32_t*>(values.data());
  std::uint32_t state = seed * 2654435761u + 1;
  for (std::int64_t i = 0; i < values.numel(); ++i) {
    state = state * 1664525u + 1013904223u;
    const std::uint32_t sign = state >> 31 << 31, mantissa = state >> 8 & 0x7fffffu;
    bits[i] = sign | 0x3e800000u | mantissa;                           // 0.25 to 0.5
    if (with_odd_ones && i % 37 == 5) bits[i] = sign | mantissa >> 4;  // subnormal
  }
  return values;
}

std::string bytes_of(const Tensor& tensor) {
  return std::string(static_cast<const char*>(tensor.data()),
                     static_cast<std::size_t>(tensor.numel()) * dtype_size(tensor.dtype()));
}

// Not printed: that would be done in the environment that is tried.
std::string bytes_of(double number) {
  return std::string(reinterpret_cast<const char*>(&number), sizeof number);
}

Tensor with_nan(Tensor tensor) {
  static_cast<std::uint32_t*>(tensor.data())[0] = 0x7fa00000u;  // a signalling one
  return tensor;
}

const char* kDecay = "exp(-0.5 * (q_idx - kv_idx)) > 1e-40";

std::int64_t visible_keys(const MaskMod& mod) {
  const Tensor mask = evaluate(mod, {1, 1, 256, 256});
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < 256; ++i) count += mask.at<bool>({0, 0, 255, i});
  return count;
}

struct Case {
  const char* name;
  std::function<std::string()> run;  // bytes of its results
};

std::vector<Case> cases() {
  static const Tensor q = numbers({1, 2, 70, 16}, 1, true), k = numbers({1, 2, 300, 16}, 2, true),
                      v = numbers({1, 2, 300, 16}, 3, true);
  static const Tensor table = numbers({300}, 4, true);
  std::vector<Case> all;
  const auto add = [&](const char* name, std::function<std::string()> run) {
    all.push_back({name, std::move(run)});
  };
  add("keys", [] { return std::to_string(visible_keys(MaskMod::parse(kDecay))); });
  add("parse", [] {
    return Formula::parse("score + 0.1 * 0.7 / 3.0 + 1e-40 + exp(0.3) - 2.5e-310").to_string();
  });
  add("trace", [] {
    const ScoreMod mod = [](auto s, auto, auto, auto query, auto key) {
      return where(query >= key, s * 1e-40f + true_div(1 + 0 * key, 3), -0.1f) + exp(s * 0 + 0.3);
    };
    return mod.to_string() + bytes_of(evaluate(mod, q));
  });
  add("log of scores", [] {
    const Tensor scores = with_nan(numbers({1, 1, 9, 70}, 9, true));
    return bytes_of(evaluate(ScoreMod::parse("log(score) / (score - score)"), scores));
  });
  add("f64", [] {
    return bytes_of(evaluate(ScoreMod::parse("log(score) + score / 3"), q.to(DType::f64)));
  });
  add("block mask", [] {
    const MaskMod mod = MaskMod::parse(kDecay);
    const BlockMask mask = create_block_mask(mod, 1, 1, 512, 512, {.block_size = {16, 16}});
    const Tensor dense = evaluate(mod, {1, 1, 512, 512});
    for (std::int64_t i = 0; i < 512; ++i)
      for (std::int64_t j = 0; j < 512; ++j) {
        const BlockKind kind = mask.kind(0, 0, i / 16, j / 16);
        const bool seen = dense.at<bool>({0, 0, i, j});
        if ((kind == BlockKind::kEmpty && seen) || (kind == BlockKind::kFull && !seen))
          return std::string("the block mask contradicts evaluate");
      }
    return bytes_of(mask.to_dense()) + bytes_of(mask.sparsity()) + mask.to_string();
  });
  add("block masks combined", [] {
    const BlockMask a =
        create_block_mask(MaskMod::parse(kDecay), 1, 1, 300, 300, {.block_size = 32});
    const BlockMask b = create_block_mask(mods::causal(), 1, 1, 300, 300, {.block_size = 32});
    BlockMask grown = a;
    grown.append_rows(10, 10);
    return (a & b).to_string() + (a | b).to_string() + (~a).to_string() +
           a.rows(17, 200).to_string() + grown.to_string() + (~a).mask_mod().to_string();
  });
  add("mods", [] {
    std::string text;
    for (const float slope : mods::alibi_slopes(12))
      text.append(reinterpret_cast<const char*>(&slope), 4);
    return text + mods::softcap(0.3).to_string() + mods::sliding_window(5).to_string() +
           bytes_of(evaluate(mods::alibi(2), q));
  });
  add("flex_attention", [] {
    AuxOutput aux;
    const Tensor out = flex_attention(
        q, k, v,
        {.score_mod = ScoreMod::parse("score + t[kv_idx] - log(score)", {{"t", Buffer(table)}}),
         .return_aux = {.lse = true, .max_scores = true},
         .aux = &aux});
    return bytes_of(out) + bytes_of(*aux.lse) + bytes_of(*aux.max_scores);
  });
  add("bf16 and f16", [] {
    const Tensor low = q.to(DType::bf16), half = q.to(DType::f16);
    return bytes_of(low) + bytes_of(half) + bytes_of(flex_attention(low, low, low)) +
           bytes_of(flex_attention(half, half, half)) + bytes_of(low.to(DType::f64));
  });
  add("backward", [] {
    AuxOutput aux;
    const Tensor out = flex_attention(q, k, v, {.return_aux = {.lse = true}, .aux = &aux});
    const AttentionGradients all = flex_attention_backward(
        BackwardInputs{.q = q, .k = k, .v = v, .out = out, .lse = *aux.lse, .d_out = out});
    return bytes_of(*all.q) + bytes_of(*all.k) + bytes_of(*all.v);
  });
  add("merge_states", [] {
    AuxOutput one, two;
    const Tensor a = flex_attention(q, k, v, {.return_aux = {.lse = true}, .aux = &one});
    const Tensor b = flex_attention(q, v, k, {.return_aux = {.lse = true}, .aux = &two});
    const MergedState merged = merge_states({a, *one.lse}, {b, *two.lse});
    const MergedState spoiled =
        merge_states({with_nan(a.clone()), *one.lse}, {b, with_nan(two.lse->clone())});
    return bytes_of(merged.out) + bytes_of(merged.lse) + bytes_of(spoiled.out);
  });
  add("sdpa", [] {
    return bytes_of(scaled_dot_product_attention(q, k, v, {.backends = {SDPBackend::kMath}})) +
           bytes_of(scaled_dot_product_attention(q, k, v, {.is_causal = true}));
  });
  add("cache", [] {
    KVCache cache({.kv_heads = 2, .head_dim = 16, .dtype = DType::bf16, .n_pages = 8});
    const SequenceId id = cache.create();
    const NewTokens step[] = {{id, 40}};
    const Tensor rows = numbers({40, 2, 16}, 5, true);
    cache.append(step);
    cache.write(0, step, rows.to(DType::bf16), rows.to(DType::bf16));
    return bytes_of(attend(cache, 0, step, rows)) + bytes_of(cache.stats().waste);
  });
  add("draw and explain", [] {
    return draw(ScoreMod::parse("score + 0.1 * (kv_idx - q_idx)"), 40, 40) +
           explain(Formula::parse("score * 1e-40 + 0.1"));
  });
  add("16 bits and elements", [] {
    std::string bits;
    for (const float x : {1e-40f, 3e-8f, 0.1f, 65519.9f}) {
      const std::uint16_t both[] = {BFloat16(x).bits, Float16(x).bits};
      bits.append(reinterpret_cast<const char*>(both), 4);
    }
    const double element = q.view().load_float({0, 0, 0, 5});
    return bits + bytes_of(element);
  });
  add("an error", [] {
    try {
      MaskMod::parse("q_idx >= 0.1 *");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  });
  add("c", [] {
    quire_mask_mod* mod = nullptr;
    quire_block_mask* mask = nullptr;
    quire_block_mask_options options{};
    options.size = sizeof options;
    options.batch = options.heads = 1;
    options.q_len = options.kv_len = 512;
    double sparsity = -1;
    if (quire_mask_mod_create(kDecay, nullptr, &mod) != QUIRE_OK ||
        quire_block_mask_create(mod, &options, &mask) != QUIRE_OK ||
        quire_block_mask_sparsity(mask, &sparsity) != QUIRE_OK)
      return std::string(quire_last_error());
    quire_block_mask_free(mask);
    quire_mask_mod_free(mod);
    return bytes_of(sparsity);
  });
  return all;
}

unsigned control() {
  std::fenv_t environment;
  std::fegetenv(&environment);
  return environment.__mxcsr;
}

void set_control(unsigned value) {
  std::fenv_t environment;
  std::fegetenv(&environment);
  environment.__mxcsr = value;
  std::fesetenv(&environment);
}

void set(const std::string& mode) {
  if (mode == "ftz") set_control(control() | kFtzDaz);
  if (mode == "up") std::fesetround(FE_UPWARD);
  if (mode == "down") std::fesetround(FE_DOWNWARD);
  if (mode == "zero") std::fesetround(FE_TOWARDZERO);
  if (mode == "traps")
    feenableexcept(FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW | FE_UNDERFLOW | FE_INEXACT);
}

}  // namespace

int main(int, char** arguments) {
  const std::string mode = arguments[1];
  const unsigned at_start = control();
  std::printf("start %x\n", at_start & ~kFlags);
  set_control(kDefault);
  std::vector<Case> all = cases();
  std::vector<std::string> expected;
  for (const Case& one : all) expected.push_back(one.run());
  std::printf("keys %s\n", expected[0].c_str());
  std::size_t hash = 0;  // the same for every way to build this
  for (const std::string& one : expected) hash = hash * 31 + std::hash<std::string>()(one);
  std::printf("hash %zx\n", hash);
  int wrong = 0;
  for (std::size_t i = 0; i < all.size(); ++i) {
    set_control(at_start & ~kFlags);
    set(mode);
    // The caller's own exception flags survive, and none is added.
    set_control((control() & ~kFlags) | 0x4);
    const unsigned before = control();
    std::string got = all[i].run();
    const unsigned after = control();
    set_control(kDefault);
    if (got != expected[i]) wrong += std::printf("%s: other bits\n", all[i].name) > 0;
    if (before != after)
      wrong +=
          std::printf("%s: the environment was %x and is %x\n", all[i].name, before, after) > 0;
  }
  std::printf("%d wrong\n", wrong);
  return 0;
}
