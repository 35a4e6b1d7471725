// The fuzz targets over their seeds, over every beginning of them, and over thousands of random
// changes: a moment of fuzzing with any compiler. scripts/fuzz does it in earnest.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "fuzz/targets.h"

namespace quire::fuzz {
namespace {

using Seed = std::vector<std::uint8_t>;

std::vector<Seed> seeds_of(const std::string& target) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(QUIRE_FUZZ_CORPUS) / target))
    paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<Seed> seeds;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    seeds.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return seeds;
}

std::string shown(const Seed& seed) {
  std::string text;
  for (const std::uint8_t byte : seed) text += fmt::format("{:02x}", byte);
  return text;
}

void expect_promises_kept(const Target& target, const Seed& seed) {
  try {
    target.run(seed);
  } catch (const std::exception& broken) {
    ADD_FAILURE() << target.name << ": " << broken.what() << "\n" << shown(seed);
  }
}

// A few bytes changed, inserted, taken away or brought from another seed.
Seed changed(Seed seed, const Seed& other, std::mt19937_64& random) {
  const auto below = [&](std::size_t limit) { return limit == 0 ? 0 : random() % limit; };
  for (std::size_t i = below(4) + 1; i > 0; --i) {
    const std::size_t at = below(seed.size() + 1);
    const auto place = seed.begin() + static_cast<std::ptrdiff_t>(at);
    switch (below(4)) {
      case 0:
        if (at < seed.size()) seed[at] = static_cast<std::uint8_t>(random());
        break;
      case 1:
        seed.insert(place, static_cast<std::uint8_t>(random()));
        break;
      case 2:
        seed.erase(place,
                   place + static_cast<std::ptrdiff_t>(std::min(below(5), seed.size() - at)));
        break;
      default:
        const std::size_t begin = below(other.size());
        const std::size_t length = std::min<std::size_t>(below(12), other.size() - begin);
        seed.insert(place, other.begin() + static_cast<std::ptrdiff_t>(begin),
                    other.begin() + static_cast<std::ptrdiff_t>(begin + length));
    }
  }
  return seed;
}

class Replay : public ::testing::TestWithParam<Target> {};

TEST_P(Replay, SeedsAndTheirBeginnings) {
  const std::vector<Seed> seeds = seeds_of(GetParam().name);
  ASSERT_GE(seeds.size(), 5u);
  for (const Seed& seed : seeds) {
    for (std::size_t length = 0; length <= std::min<std::size_t>(seed.size(), 300); ++length)
      expect_promises_kept(GetParam(),
                           Seed(seed.begin(), seed.begin() + static_cast<std::ptrdiff_t>(length)));
    expect_promises_kept(GetParam(), seed);
  }
}

TEST_P(Replay, RandomChanges) {
  const std::vector<Seed> seeds = seeds_of(GetParam().name);
  std::mt19937_64 random(1);
  for (int i = 0; i < 10000 && !HasFailure(); ++i) {
    const Seed& other = seeds[random() % seeds.size()];
    expect_promises_kept(GetParam(), changed(seeds[random() % seeds.size()], other, random));
  }
}

INSTANTIATE_TEST_SUITE_P(Fuzz, Replay, ::testing::ValuesIn(kTargets),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace quire::fuzz
