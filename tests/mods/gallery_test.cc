// The gallery as a whole: every entry is complete, can be made at any size, prints and parses back;
// those of the library equal the functions of mods.h.
#include <gtest/gtest.h>

#include "quire/mods.h"
#include "tests/mods/expect_mod.h"
#include "tests/support/expect_error.h"

namespace quire::mods {
namespace {

using testing::expect_error;
using testing::some_scores;

const GallerySizes kOdd = {.q_len = 113, .kv_len = 113, .heads = 3, .batch = 2};
const GallerySizes kUneven = {.q_len = 67, .kv_len = 131, .heads = 5, .batch = 1};
const GallerySizes kLeast = {};

NamedBuffers by_name(const Formula& formula) {
  NamedBuffers buffers;
  for (const Buffer& buffer : formula.buffers()) buffers.emplace_back(buffer.name(), buffer);
  return buffers;
}

TEST(Gallery, EntriesAreComplete) {
  EXPECT_GE(gallery().size(), 25u);
  for (const GalleryEntry& entry : gallery()) {
    EXPECT_FALSE(entry.name.empty());
    EXPECT_FALSE(entry.description.empty()) << entry.name;
    EXPECT_EQ(entry.description.find('\n'), std::string::npos) << entry.name;
    EXPECT_NE(entry.reference.find(" 20"), std::string::npos) << entry.name << " needs a year";
    EXPECT_GT(entry.sizes.kv_len, 1) << entry.name;
    EXPECT_EQ(&gallery_entry(entry.name), &entry);
  }
}

TEST(Gallery, EveryEntryAtEverySizePrintsAndParsesBack) {
  for (const GalleryEntry& entry : gallery()) {
    for (const GallerySizes& at : {entry.sizes, kOdd, kUneven, kLeast}) {
      SCOPED_TRACE(entry.name);
      const Shape shape = {at.batch, at.heads, at.q_len, at.kv_len};
      if (entry.kind == GalleryEntry::Kind::kMask) {
        const MaskMod mod = entry.mask_mod(at);
        EXPECT_EQ(evaluate(mod, shape).shape(), shape);
        const Formula& formula = mod.formula();
        EXPECT_EQ(MaskMod::parse(mod.to_string(), by_name(formula)).formula(), formula);
      } else {
        const ScoreMod mod = entry.score_mod(at);
        EXPECT_EQ(evaluate(mod, some_scores(shape)).shape(), shape);
        const Formula& formula = mod.formula();
        EXPECT_EQ(ScoreMod::parse(mod.to_string(), by_name(formula)).formula(), formula);
      }
    }
  }
}

TEST(Gallery, FullTextAndBuffersAreAllAParserNeeds) {
  const GalleryEntry& entry = gallery_entry("sliding_window");
  EXPECT_EQ(entry.full_text({.q_len = 16384, .kv_len = 16384}),
            "(q_idx >= kv_idx) & (q_idx - kv_idx < 4096)");
  EXPECT_EQ(entry.mask_mod({.q_len = 16384, .kv_len = 16384}).to_string(),
            "(q_idx >= kv_idx) & (q_idx - kv_idx < 4096)");
  const GalleryEntry& video = gallery_entry("video_heads");
  EXPECT_EQ(MaskMod::parse(video.full_text(kOdd), video.buffers(kOdd)).formula(),
            video.mask_mod(kOdd).formula());
  EXPECT_EQ(gallery_entry("softcap").full_text(kLeast), "20.0 * tanh(score / 20.0)");
}

TEST(Gallery, Errors) {
  try {
    gallery_entry("no_such");
    FAIL();
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_EQ(text.find("[gallery] no entry 'no_such'; there are causal, causal_bottom_right, "),
              0u);
    for (const GalleryEntry& entry : gallery()) EXPECT_NE(text.find(entry.name), text.npos);
  }
  expect_error(ErrorKind::value, "[gallery] 'causal' is a mask mod, not a score mod",
               [] { gallery_entry("causal").score_mod(); });
  expect_error(ErrorKind::value, "[gallery] 'alibi' is a score mod, not a mask mod",
               [] { gallery_entry("alibi").mask_mod(); });
  expect_error(ErrorKind::value, "[gallery] kv_len must be at least 1; got 0",
               [] { gallery_entry("causal").mask_mod({.q_len = 3, .kv_len = 0}); });
}

// What a table of the entry holds, for the function of mods.h.
Buffer table(const GalleryEntry& entry, const GallerySizes& at, const char* name) {
  for (const auto& [key, buffer] : entry.buffers(at))
    if (key == name) return buffer;
  throw Error(ErrorKind::value, name);
}

MaskMod library_mask(const GalleryEntry& entry, const GallerySizes& at) {
  const std::string& name = entry.name;
  const std::int64_t kv_len = at.kv_len, length = std::max(at.q_len, kv_len);
  const std::int64_t quarter = std::max<std::int64_t>(1, kv_len / 4);
  if (name == "causal") return causal();
  if (name == "causal_bottom_right") return causal_bottom_right(at.q_len, kv_len);
  if (name == "sliding_window") return sliding_window(quarter);
  if (name == "sliding_window_two_sided") return sliding_window(kv_len / 8, kv_len / 16);
  if (name == "document") return document(table(entry, at, "ids"));
  if (name == "prefix_lm") return prefix_lm(kv_len / 4);
  if (name == "padding") return padding(table(entry, at, "kv_lengths"));
  if (name == "shared_prefix") return shared_prefix(length / 4, table(entry, at, "ids"));
  if (name == "attention_sink") return attention_sink(4);
  if (name == "streaming") return streaming(4, quarter);
  if (name == "chunked") return chunked(quarter);
  // Four chains, level by level.
  std::vector<std::int64_t> parents;
  for (std::int64_t i = 0; i < length - length / 2; ++i) parents.push_back(i < 4 ? -1 : i - 4);
  return tree(parents, length / 2);
}

TEST(Gallery, MasksOfTheLibraryEqualItsFunctions) {
  for (const char* name : {"causal", "causal_bottom_right", "sliding_window",
                           "sliding_window_two_sided", "document", "prefix_lm", "padding",
                           "shared_prefix", "tree", "attention_sink", "streaming", "chunked"}) {
    SCOPED_TRACE(name);
    const GalleryEntry& entry = gallery_entry(name);
    for (const GallerySizes& at : {entry.sizes, kOdd, kUneven, kLeast}) {
      const Tensor expected =
          evaluate(library_mask(entry, at), {at.batch, at.heads, at.q_len, at.kv_len});
      testing::expect_mask(entry.mask_mod(at), expected.shape(),
                           [&](auto... place) { return expected.at<bool>({place...}); });
    }
  }
}

ScoreMod library_score(const GalleryEntry& entry, const GallerySizes& at) {
  if (entry.name == "alibi") return alibi(at.heads);
  if (entry.name == "softcap") return softcap(20);
  if (entry.name == "relative_bias") return relative_bias(table(entry, at, "table"));
  return bias_2d(table(entry, at, "bias"));
}

TEST(Gallery, ScoreModsOfTheLibraryEqualItsFunctions) {
  for (const char* name : {"alibi", "softcap", "relative_bias", "bias_2d"}) {
    SCOPED_TRACE(name);
    const GalleryEntry& entry = gallery_entry(name);
    for (const GallerySizes& at : {entry.sizes, kOdd, kUneven, kLeast}) {
      const Shape shape = {at.batch, at.heads, at.q_len, at.kv_len};
      const Tensor expected = evaluate(library_score(entry, at), some_scores(shape));
      testing::expect_scores(entry.score_mod(at), shape, 0,
                             [&](double, auto... place) { return expected.at<float>({place...}); });
    }
  }
}

}  // namespace
}  // namespace quire::mods
