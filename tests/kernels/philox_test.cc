// Philox4x32-10 in the lanes: the known answers of its authors' library (Random123, kat_vectors),
// and the words of the reference in every lane and tail. ctest runs this once per ISA.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/dispatch.h"
#include "kernels/math/math_table.h"
#include "reference/dropout.h"

namespace quire {
namespace {

using Words = std::array<std::uint32_t, 4>;

std::vector<Words> philox(const std::vector<Words>& counters, std::uint64_t key) {
  std::vector<Words> words(counters.size());
  const std::uint32_t halves[] = {static_cast<std::uint32_t>(key),
                                  static_cast<std::uint32_t>(key >> 32)};
  kernels::current_table().math->philox(counters.data()->data(), halves, words.data()->data(),
                                        counters.size());
  return words;
}

TEST(Philox, KnownAnswers) {
  struct Answer {
    Words counter;
    std::uint64_t key;
    Words words;
  };
  constexpr std::uint32_t kAll = 0xffffffff;
  const Answer answers[] = {{{0, 0, 0, 0}, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
                            {{kAll, kAll, kAll, kAll},
                             0xffffffffffffffff,
                             {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
                            {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                             0x299f31d0a4093822,
                             {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}};
  for (const Answer& answer : answers) {
    EXPECT_EQ(reference::philox(answer.counter, answer.key), answer.words);
    EXPECT_EQ(philox({answer.counter}, answer.key)[0], answer.words);
  }
}

TEST(Philox, EveryLane) {
  std::mt19937 random(1);
  for (const std::size_t count : {1, 2, 7, 16, 17, 1000}) {
    const std::uint64_t key = random() * std::uint64_t{0x100000001} ^ random();
    std::vector<Words> counters(count);
    for (Words& counter : counters)
      for (std::uint32_t& word : counter) word = static_cast<std::uint32_t>(random());
    const std::vector<Words> words = philox(counters, key);
    for (std::size_t i = 0; i < count; ++i)
      ASSERT_EQ(words[i], reference::philox(counters[i], key)) << i << " of " << count;
  }
}

}  // namespace
}  // namespace quire
