// draw(): terminal drawings character by character, in all styles, and the errors of all drawings.
#include "quire/draw.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/expect_error.h"

namespace quire {
namespace {

using testing::expect_error;

MaskMod causal() { return MaskMod::parse("q_idx >= kv_idx"); }

TEST(Draw, EveryElementOfASmallMask) {
  EXPECT_EQ(draw(causal(), 5, 6), R"(q_idx >= kv_idx
batch 0 of 1, head 0 of 1; 5 queries x 6 keys; a cell: an element

kv_idx  0   2   4   6
 q_idx ┌┬───┬───┬───┐
     0 ┤██··········│
       │████········│
     2 ┤██████······│
       │████████····│
     4 ┤██████████··│
     5 └────────────┘

█ visible   · hidden
)");
}

TEST(Draw, HalvesOfCharactersWhereTheyTellAll) {
  EXPECT_EQ(draw(causal(), 15, 16, {.title = "half", .width = 16}), R"(half
batch 0 of 1, head 0 of 1; 15 queries x 16 keys; a cell: an element

kv_idx  0   4   8   12  16
 q_idx ┌┬───┬───┬───┬───┐
     0 ┤█▄··············│
       │███▄············│
     4 ┤█████▄··········│
       │███████▄········│
     8 ┤█████████▄······│
       │███████████▄····│
    12 ┤█████████████▄··│
       │▀▀▀▀▀▀▀▀▀▀▀▀▀▀▀·│
    15 └────────────────┘

█ visible   · hidden
)");
}

TEST(Draw, BlocksAsLargeAsACellOfALargeMask) {
  const MaskMod window = MaskMod::parse("(q_idx >= kv_idx) & (q_idx - kv_idx < 400)");
  EXPECT_EQ(draw(window, 1024, 1024, {.title = "window", .width = 16}), R"(window
batch 0 of 1, head 0 of 1; 1024 queries x 1024 keys; a cell: 128 x 64 elements

kv_idx  0       512     1024
 q_idx ┌┬───────┬───────┐
     0 ┤▒▒··············│
       │██▒▒············│
   256 ┤████▒▒··········│
       │▒▒████▒▒········│
   512 ┤·▒▒▒████▒▒······│
       │···▒▒▒████▒▒····│
   768 ┤·····▒▒▒████▒▒··│
       │·······▒▒▒████▒▒│
  1024 └────────────────┘

█ full   ▒ partial   · empty
)");
}

TEST(Draw, BlocksOfABlockMask) {
  const BlockMask mask = create_block_mask(causal(), 2, 3, 500, 640, {.block_size = 128});
  EXPECT_EQ(draw(mask, {.b = 1, .h = 2}),
            R"(q_idx >= kv_idx
batch 1 of 2, head 2 of 3; 500 queries x 640 keys; a cell: a block of 128 x 128

kv_idx  0         640
 q_idx ┌┬─────────┐
     0 ┤▒▒········│
   128 ┤██▒▒······│
   256 ┤████▒▒····│
   384 ┤██████▒▒··│
   500 └──────────┘

█ full   ▒ partial   · empty
)");
}

TEST(Draw, SeveralBlocksInACell) {
  // 12 x 12 blocks in 8 columns and 4 lines: 3 x 2 blocks a cell, full only if all of them are.
  const BlockMask mask = create_block_mask(causal(), 1, 1, 48, 48, {.block_size = 4});
  EXPECT_EQ(draw(mask, {.title = "merged", .width = 8}), R"(merged
batch 0 of 1, head 0 of 1; 48 queries x 48 keys; a cell: 3 x 2 blocks of 4 x 4

kv_idx  0     48
 q_idx ┌┬─────┐
     0 ┤▒▒····│
    12 ┤█▒▒···│
    24 ┤███▒▒·│
    36 ┤████▒▒│
    48 └──────┘

█ full   ▒ partial   · empty
)");
}

TEST(Draw, Ascii) {
  EXPECT_EQ(draw(causal(), 3, 3, {.style = DrawStyle::kAscii}), R"(q_idx >= kv_idx
batch 0 of 1, head 0 of 1; 3 queries x 3 keys; a cell: an element

kv_idx  0   2 3
 q_idx ++---+-+
     0 +##....|
     1 +####..|
     2 +######|
     3 +------+

# visible   . hidden
)");
  const std::string blocks = draw(causal(), 100, 100, {.style = DrawStyle::kAscii, .width = 8});
  EXPECT_NE(blocks.find("\n     0 +++......|\n    25 +##++....|\n"), std::string::npos) << blocks;
  EXPECT_NE(blocks.find("# full   + partial   . empty\n"), std::string::npos);
  for (const char c : blocks) EXPECT_GE(c, 0);
}

TEST(Draw, ColoursShowThreeKindsInHalves) {
  const std::string text =
      draw(causal(), 128, 128, {.title = "t", .style = DrawStyle::kColour, .width = 8});
  // Diagonal cells are partial: orange over blue, then orange in the lower half.
  EXPECT_NE(text.find("     0 ┤\x1b[0;38;5;178;48;5;32m▀\x1b[0;38;5;178m▄\x1b[0m······│\n"
                      "    32 ┤\x1b[0;38;5;32m██\x1b[0;38;5;178;48;5;32m▀\x1b[0;38;5;178m▄"
                      "\x1b[0m····│\n"),
            std::string::npos)
      << text;
  EXPECT_NE(
      text.find("\x1b[0;38;5;32m█\x1b[0m full   \x1b[0;38;5;178m█\x1b[0m partial   · empty\n"),
      std::string::npos)
      << text;
}

TEST(Draw, AHeatMapOfWhatIsAdded) {
  const ScoreMod mod =
      ScoreMod::parse("where(q_idx >= kv_idx, score + 0.5 * (kv_idx - q_idx), -inf)");
  EXPECT_EQ(draw(mod, 4, 4, {.title = "bias"}), R"(bias
added to a score of 0; batch 0 of 1, head 0 of 1; 4 queries x 4 keys; a cell: an element

kv_idx  0   2   4
 q_idx ┌┬───┬───┐
     0 ┤██······│
     1 ┤▆▆██····│
     2 ┤▃▃▆▆██··│
     3 ┤▁▁▃▃▆▆██│
     4 └────────┘

▁ = -1.5 to █ = 0   · hidden (-inf)
)");
  const std::string ascii = draw(mod, 4, 4, {.style = DrawStyle::kAscii});
  EXPECT_NE(ascii.find("     3 +00336699|\n"), std::string::npos) << ascii;
  EXPECT_NE(ascii.find("0 = -1.5 to 9 = 0   . hidden (-inf)\n"), std::string::npos) << ascii;
  const std::string colour = draw(mod, 4, 4, {.style = DrawStyle::kColour});
  EXPECT_NE(colour.find("-1.5 \x1b["), std::string::npos) << colour;
  EXPECT_NE(colour.find(" 0   · hidden (-inf)\n"), std::string::npos) << colour;
}

TEST(Draw, AHeatMapNamesWhatIsNoNumber) {
  const ScoreMod mod =
      ScoreMod::parse("where(kv_idx == 0, 0.0 / (q_idx - q_idx), where(kv_idx == 1, inf, -inf))");
  const std::string text = draw(mod, 1, 3);
  EXPECT_NE(text.find("0 ┤??∞∞··│\n"), std::string::npos) << text;
  EXPECT_NE(text.find("\n\n· hidden (-inf)   ? NaN   ∞ +inf\n"), std::string::npos) << text;
}

TEST(Draw, ASoftCapAtAnotherScore) {
  const std::string text = draw(ScoreMod::parse("minimum(score, 20)"), 2, 2, {.score = 50});
  EXPECT_NE(text.find("added to a score of 50; "), std::string::npos) << text;
  EXPECT_NE(text.find("\n\n▁ = -30\n"), std::string::npos) << text;
}

TEST(Draw, RowsThatBeginLater) {
  const std::string text = draw(causal(), 2, 4, {.q_begin = 2});
  EXPECT_NE(text.find("     2 ┤██████··│\n     3 ┤████████│\n     4 └"), std::string::npos) << text;
  const BlockMask rows = create_block_mask(causal(), 1, 1, 8, 8, {.block_size = 2}).rows(4, 8);
  EXPECT_NE(draw(rows).find("     4 ┤████▒▒··│\n     6 ┤██████▒▒│\n     8 └"), std::string::npos)
      << draw(rows);
}

TEST(Draw, RowsThatWereTakenAwayAreCountedInBlocks) {
  const BlockMask mask = create_block_mask(causal(), 1, 1, 8, 8, {.block_size = 2})
                             .index(BlockSlice(), BlockSlice(), std::vector<std::int64_t>{3, 0});
  const std::string text = draw(mask);
  EXPECT_NE(text.find("block mask\n"), std::string::npos) << text;
  EXPECT_NE(text.find("block of q_idx ┌"), std::string::npos) << text;
  EXPECT_NE(text.find(" 0 ┤██████▒▒│\n             1 ┤▒▒······│\n             2 └"),
            std::string::npos)
      << text;
}

TEST(Draw, OneQueryBeforeManyKeys) {
  const std::string text = draw(MaskMod::parse("kv_idx < 1000"), 1, 4096, {.width = 16});
  EXPECT_NE(text.find("     0 ┤███▒············│\n     1 └"), std::string::npos) << text;
}

// An SVG stands by itself: nothing is loaded from outside, and a title is escaped.
TEST(Draw, SvgOfMaskAndScore) {
  const std::string mask = draw_svg(causal(), 8, 8, {.title = "a < b & \"c\""});
  EXPECT_TRUE(mask.starts_with("<svg xmlns=\"http://www.w3.org/2000/svg\"")) << mask.substr(0, 80);
  EXPECT_TRUE(mask.ends_with("</svg>\n")) << mask;
  EXPECT_NE(mask.find("a &lt; b &amp; "), std::string::npos);
  EXPECT_EQ(mask.find("href"), std::string::npos);
  const std::string heat = draw_svg(ScoreMod::parse("score + 0.5 * (kv_idx - q_idx)"), 8, 8);
  EXPECT_NE(heat.find("score + 0.5 * (kv_idx - q_idx)"), std::string::npos);
  EXPECT_NE(heat, mask);
}

TEST(Draw, Errors) {
  const BlockMask mask = create_block_mask(causal(), 2, 3, 8, 8);
  const ScoreMod score = ScoreMod::parse("score");
  const auto value = [](const char* text, auto call) {
    expect_error(ErrorKind::value, text, [&] { call(); });
  };
  const auto index = [](const char* text, auto call) {
    expect_error(ErrorKind::index, text, [&] { call(); });
  };
  index("[draw] batch 2 is outside a mask of 2", [&] { draw(mask, {.b = 2}); });
  index("[draw] head -1 is outside a mask of 3", [&] { draw_svg(mask, {.h = -1}); });
  index("[draw] b 1 is outside 0..0", [] { draw(causal(), 8, 8, {.b = 1}); });
  index("[draw] h 4 is outside 0..3", [&] { draw_svg(score, 8, 8, {.h = 4, .heads = 4}); });
  value("[draw] q_len must be in 1..1099511627776; got 0", [] { draw(causal(), 0, 8); });
  value("[draw] kv_len must be in 1..1099511627776; got 0", [] { draw_svg(causal(), 8, 0); });
  value("[draw] kv_len must be in 1..1073741824; got -5", [&] { draw(score, 8, -5); });
  value("[draw] q_begin must be in 0..1099511627776; got -1",
        [] { draw(causal(), 8, 8, {.q_begin = -1}); });
  value("[draw] heads must be in 1..1099511627776; got 0",
        [] { draw(causal(), 8, 8, {.heads = 0}); });
  value("[draw] width must be in 8..1000; got 7", [&] { draw(mask, {.width = 7}); });
  value("[draw] cells must be in 8..2048; got 4000", [&] { draw_svg(mask, {.cells = 4000}); });
  value("[draw] there is nothing to draw in a mask of [1, 1, 0, 8]",
        [] { draw(create_block_mask(causal(), 1, 1, 0, 8)); });
}

TEST(Draw, AFaultNamesTheBatchAndHeadThatWereDrawn) {
  const Buffer table(std::vector<std::int64_t>{1, 2}, {.name = "table"});
  const MaskMod mask = MaskMod::parse("table[h + kv_idx] > b - 9", {{"table", table}});
  const DrawOptions options{.b = 4, .h = 1, .batch = 5, .heads = 2};
  const char* text =
      "[formula] index 2 is outside buffer 'table' of size 2 (axis 0) at b=4, h=1, "
      "q_idx=0, kv_idx=1";
  expect_error(ErrorKind::index, text, [&] { draw(mask, 2, 2, options); });
  const ScoreMod score = ScoreMod::parse("score + table[h + kv_idx]", {{"table", table}});
  expect_error(ErrorKind::index, text, [&] { draw(score, 2, 2, options); });
}

TEST(Draw, PngNeedsLibpng) {
  if (!has_png()) {
    expect_error(ErrorKind::not_implemented,
                 "[draw_png] this build has no PNG: libpng was not found when it was configured",
                 [] { draw_png(causal(), 8, 8); });
    return;
  }
  const std::vector<std::uint8_t> bytes = draw_png(causal(), 8, 8);
  const std::vector<std::uint8_t> signature = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
  EXPECT_TRUE(std::equal(signature.begin(), signature.end(), bytes.begin()));
  EXPECT_NE(draw_png(create_block_mask(causal(), 1, 1, 8, 8)), bytes);  // one block
  EXPECT_NE(draw_png(ScoreMod::parse("score + q_idx"), 8, 8), bytes);
}

}  // namespace
}  // namespace quire
