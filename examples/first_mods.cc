// Mods in C++ and as text: written, printed, explained, and evaluated on every ISA of this machine.
#include <quire/quire.h>

#include <cmath>
#include <cstring>
#include <iostream>

using namespace quire;

int main() {
  // A mask is a rule about positions; a score mod changes a score. Both are traced once, into a
  // formula.
  const MaskMod causal = [](auto, auto, auto q, auto kv) { return q >= kv; };
  const MaskMod window = [](auto, auto, auto q, auto kv) { return q - kv < 3; };
  const Buffer slopes(std::vector<float>{0.5f, 0.25f}, {.name = "slopes"});
  const ScoreMod alibi = [&](auto score, auto, auto h, auto q, auto kv) {
    return score + slopes[h] * (kv - q);
  };
  std::cout << "alibi:    " << alibi.to_string() << "\n";
  std::cout << "banded:   " << (causal & window).to_string() << "\n";

  // The same as text.
  const ScoreMod capped =
      ScoreMod::parse("20 * tanh(score / 20) + slopes[h] * (kv_idx - q_idx)", {{"slopes", slopes}});
  std::cout << "capped:   " << capped.to_string() << "\n\n";

  // A mask, drawn.
  const Tensor mask = evaluate(causal & window, {1, 1, 8, 8});
  for (int q = 0; q < 8; ++q) {
    for (int kv = 0; kv < 8; ++kv) std::cout << (mask.view().at<bool>({0, 0, q, kv}) ? "# " : ". ");
    std::cout << "\n";
  }

  // The same bits from every ISA.
  Tensor scores({1, 2, 100, 300}, DType::f32);
  for (int64_t i = 0; i < scores.view().numel(); ++i)
    scores.view().data_as<float>()[i] = std::sin(static_cast<float>(i)) * 30;
  std::cout << "\n";
  Tensor first;
  for (const Isa isa : available_isas()) {
    const ScopedIsa use(isa);
    const Tensor result = evaluate(capped, scores);
    if (isa == available_isas().front()) first = result;
    const bool same =
        std::memcmp(result.view().data(), first.view().data(), 2 * 100 * 300 * sizeof(float)) == 0;
    std::cout << "capped at [0, 1, 7, 2] on " << isa_name(isa) << ": "
              << result.view().at<float>({0, 1, 7, 2}) << ", bits as on "
              << isa_name(available_isas().front()) << ": " << (same ? "yes" : "NO") << "\n";
    if (!same) return 1;
  }

  // A mistake is an error that says what is wrong, before anything runs or at the element that
  // caused it.
  try {
    MaskMod::parse("q_idx >= kv_idy");
  } catch (const Error& error) {
    std::cout << "\n" << error.what() << "\n";
  }
  return 0;
}
