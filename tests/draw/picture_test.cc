// Pictures against a dense evaluation, element by element; sizes, ticks, scales and layout.
#include "draw/picture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "draw/canvas.h"
#include "draw/palette.h"
#include "draw/sheet.h"
#include "draw/wrap.h"
#include "quire/evaluate.h"

namespace quire::drawing {
namespace {

using Ticks = std::vector<std::int64_t>;

// What a cell of these elements must be.
CellKind expected_kind(const Tensor& dense, const Picture& picture, const DrawOptions& at,
                       std::int64_t row, std::int64_t col) {
  std::int64_t visible = 0, count = 0;
  for (std::int64_t q = row * picture.q.step;
       q < std::min((row + 1) * picture.q.step, picture.q.length); ++q) {
    for (std::int64_t kv = col * picture.kv.step;
         kv < std::min((col + 1) * picture.kv.step, picture.kv.length); ++kv) {
      visible += dense.at<bool>({at.b, at.h, q, kv});
      ++count;
    }
  }
  return visible == 0       ? CellKind::kHidden
         : visible == count ? CellKind::kVisible
                            : CellKind::kPartial;
}

void expect_picture(const Picture& picture, const Tensor& dense, const DrawOptions& at) {
  ASSERT_EQ(picture.kinds.size(), static_cast<std::size_t>(picture.q.cells() * picture.kv.cells()));
  for (std::int64_t row = 0; row < picture.q.cells(); ++row)
    for (std::int64_t col = 0; col < picture.kv.cells(); ++col)
      ASSERT_EQ(picture.kind(row, col), expected_kind(dense, picture, at, row, col))
          << row << ", " << col << " of " << picture.title;
}

TEST(Picture, MasksAreThoseOfADenseEvaluation) {
  const char* masks[] = {
      "q_idx >= kv_idx",
      "(q_idx - kv_idx < 20) & (kv_idx - q_idx < 3 * h)",
      "(q_idx * 7919 + kv_idx * 104729 + h * 31 + b) % 5 < 2",
      "q_idx // 8 == kv_idx // 8",
      "kv_idx < 0",
  };
  for (const char* text : masks) {
    const MaskMod mod = MaskMod::parse(text);
    const DrawOptions at{.b = 1, .h = 2, .batch = 2, .heads = 3};
    for (const auto& [q_len, kv_len] : {std::pair{1, 1}, {33, 47}, {64, 16}, {5, 130}}) {
      const Tensor dense = evaluate(mod, Shape{2, 3, q_len, kv_len});
      const BlockMask blocks = create_block_mask(mod, 2, 3, q_len, kv_len, {.block_size = {4, 3}});
      for (const CellLimit& limit : {CellLimit{1, 1}, {7, 8}, {64, 64}, {200, 10}}) {
        expect_picture(picture_of(mod, q_len, kv_len, at, limit), dense, at);
        expect_picture(picture_of(blocks, at, limit), dense, at);
      }
    }
  }
}

TEST(Picture, AHeatMapHasTheMeanOfWhatIsNotHidden) {
  const ScoreMod mod =
      ScoreMod::parse("where((q_idx + kv_idx) % 3 == 0, -inf, score + h + 0.25 * q_idx - kv_idx)");
  const DrawOptions at{.h = 3, .heads = 4, .q_begin = 5};
  const Picture picture = picture_of(mod, 50, 61, at, {16, 10});
  EXPECT_EQ(picture.q.step, 4);
  EXPECT_EQ(picture.kv.step, 7);
  for (std::int64_t row = 0; row < picture.q.cells(); ++row) {
    for (std::int64_t col = 0; col < picture.kv.cells(); ++col) {
      double sum = 0;
      int count = 0;
      for (std::int64_t q = 5 + row * 4; q < 5 + std::min<std::int64_t>(row * 4 + 4, 50); ++q) {
        for (std::int64_t kv = col * 7; kv < std::min<std::int64_t>(col * 7 + 7, 61); ++kv) {
          if ((q + kv) % 3 == 0) continue;
          sum += 3 + 0.25 * static_cast<double>(q) - static_cast<double>(kv);
          ++count;
        }
      }
      const auto cell = static_cast<std::size_t>(row * picture.kv.cells() + col);
      EXPECT_EQ(picture.kinds[cell], CellKind::kVisible);
      EXPECT_FLOAT_EQ(picture.values[cell], static_cast<float>(sum / count)) << row << ", " << col;
    }
  }
}

TEST(Picture, TheMiddleOfTallCellsIsLookedAt) {
  // Cells of 1,000 queries: 64 in the middle, 468 to 531, whose mean is 499.5.
  const Picture picture = picture_of(ScoreMod::parse("score + q_idx"), 3000, 2, {}, {3, 2});
  EXPECT_EQ(picture.values,
            (std::vector<float>{499.5f, 499.5f, 1499.5f, 1499.5f, 2499.5f, 2499.5f}));
}

TEST(Picture, ValuesThatAreNoNumbers) {
  const ScoreMod mod = ScoreMod::parse(
      "where(kv_idx == 0, 0.0 / (q_idx - q_idx), where(kv_idx == 1, inf, where(kv_idx == 2, -inf, "
      "7)))");
  const Picture each = picture_of(mod, 1, 4, {}, {1, 4});
  EXPECT_EQ(each.kinds, (std::vector{CellKind::kNan, CellKind::kInfinite, CellKind::kHidden,
                                     CellKind::kVisible}));
  // NaN wins over +inf, and a number over -inf.
  const Picture pairs = picture_of(mod, 1, 4, {}, {1, 2});
  EXPECT_EQ(pairs.kinds, (std::vector{CellKind::kNan, CellKind::kVisible}));
  EXPECT_EQ(pairs.values[1], 7);
}

TEST(Picture, CellsInTheProportionsOfTheSequence) {
  const auto expect = [](std::int64_t q_len, std::int64_t kv_len, std::int64_t q, std::int64_t kv) {
    const CellLimit limit = fit_cells(q_len, kv_len, 64);
    EXPECT_EQ(limit.q, q) << q_len << " x " << kv_len;
    EXPECT_EQ(limit.kv, kv) << q_len << " x " << kv_len;
  };
  expect(4096, 4096, 64, 64);
  expect(1024, 4096, 16, 64);
  expect(4096, 100, 64, 8);
  expect(1, std::int64_t{1} << 40, 8, 64);
}

TEST(Picture, TicksAreRound) {
  EXPECT_EQ(tick_positions(0, 4096, 8), (Ticks{0, 512, 1024, 1536, 2048, 2560, 3072, 3584, 4096}));
  EXPECT_EQ(tick_positions(0, 100, 5), (Ticks{0, 20, 40, 60, 80, 100}));
  EXPECT_EQ(tick_positions(0, 1000, 3), (Ticks{0, 500, 1000}));
  EXPECT_EQ(tick_positions(0, 103, 5), (Ticks{0, 50, 103}));
  EXPECT_EQ(tick_positions(3, 1, 8), (Ticks{3, 4}));
  EXPECT_EQ(tick_positions(1000, 64, 4), (Ticks{1000, 1024, 1040, 1064}));  // none near an end
  EXPECT_EQ(tick_positions(0, 7, 0), (Ticks{0, 7}));
  EXPECT_EQ(tick_positions(0, std::int64_t{1} << 40, 1), (Ticks{0, std::int64_t{1} << 40}));
}

Picture heat(std::vector<float> values) {
  Picture picture;
  picture.kv.length = static_cast<std::int64_t>(values.size());
  picture.kinds.assign(values.size(), CellKind::kVisible);
  picture.values = std::move(values);
  return picture;
}

TEST(Palette, ZeroHasOneColourAndTheScaleIsThatOfTheLargest) {
  const HeatScale both(heat({-1, 4}));
  EXPECT_EQ(both.low, -4);
  EXPECT_EQ(both.high, 4);
  EXPECT_EQ(both.level(0), 0);
  EXPECT_EQ(both.level(-1), -8);
  EXPECT_EQ(both.level(4), kLevels);
  const HeatScale negative(heat({-7, -2}));
  EXPECT_EQ(negative.low, -7);
  EXPECT_EQ(negative.high, 0);
  EXPECT_EQ(HeatScale(heat({0, 0})).level(0), 0);
  EXPECT_EQ(cell_inks(heat({0, 2, -2})),
            (std::vector<Ink>{kInkZero, kInkZero + 32, kInkZero - 32}));
}

TEST(Palette, KindsDoNotLookAlike) {
  for (const auto colour : {light_colour, dark_colour}) {
    const auto distance = [&](Ink a, Ink b) {
      const Colour x = colour(a), y = colour(b);
      return std::abs(x.r - y.r) + std::abs(x.g - y.g) + std::abs(x.b - y.b);
    };
    const auto expect_apart = [&](const std::vector<Ink>& inks) {
      for (std::size_t i = 0; i < inks.size(); ++i)
        for (std::size_t j = 0; j < i; ++j)
          EXPECT_GT(distance(inks[i], inks[j]), 100) << int(inks[i]) << " " << int(inks[j]);
    };
    expect_apart({kInkHidden, kInkPartial, kInkVisible});
    expect_apart({kInkMasked, kInkNan, kInkInfinite, kInkZero, kInkZero - 32, kInkZero + 32});
    EXPECT_GT(distance(kInkText, kInkGround), 500);
  }
}

TEST(Sheet, EverythingLiesOnIt) {
  const MaskMod mod = MaskMod::parse("q_idx >= kv_idx");
  for (const auto& [q_len, kv_len] :
       {std::pair{1, 1}, {64, 64}, {1, 4096}, {4096, 16}, {700, 900}}) {
    const Sheet sheet = lay_out(picture_of(mod, q_len, kv_len, {}, fit_cells(q_len, kv_len, 512)));
    for (const Sheet::Box& box : sheet.boxes) {
      EXPECT_GE(std::min(box.x, box.y), 0);
      EXPECT_LE(box.x + box.width, sheet.width);
      EXPECT_LE(box.y + box.height, sheet.height);
    }
    for (const Sheet::Label& label : sheet.labels) {
      const int width = static_cast<int>(label.text.size()) * kCharacterWidth;
      const int left = label.align == Sheet::Align::kLeft    ? label.x
                       : label.align == Sheet::Align::kRight ? label.x - width
                                                             : label.x - width / 2;
      EXPECT_GE(left, 0) << label.text;
      EXPECT_LE(left + width, sheet.width) << label.text;
    }
  }
}

TEST(Wrap, LinesAreBrokenAtSpaces) {
  using Lines = std::vector<std::string>;
  EXPECT_EQ(wrap("one two three", 20, 3), (Lines{"one two three"}));
  EXPECT_EQ(wrap("one two three", 8, 3), (Lines{"one two", "three"}));
  EXPECT_EQ(wrap("one two three", 7, 3), (Lines{"one two", "three"}));
  EXPECT_EQ(wrap("abcdefghij", 4, 3), (Lines{"abcd", "efgh", "ij"}));
  EXPECT_EQ(wrap("abcdefghij", 4, 2), (Lines{"abcd", "e..."}));
  EXPECT_EQ(wrap("αβγδε", 2, 3), (Lines{"αβ", "γδ", "ε"}));
  EXPECT_EQ(wrap("", 4, 2), (Lines{""}));
}

TEST(Font, EveryCharacterHasAShapeOfItsOwn) {
  std::set<std::string> shapes;
  for (char c = ' '; c <= '~'; ++c) {
    std::string dots;
    for (int row = 0; row < kGlyphHeight; ++row)
      for (int col = 0; col < kGlyphWidth; ++col) dots += glyph_dot(c, row, col) ? '#' : '.';
    EXPECT_EQ(c == ' ', dots.find('#') == std::string::npos) << c;
    EXPECT_TRUE(shapes.insert(dots).second) << c;
  }
  EXPECT_TRUE(glyph_dot('T', 0, 0) && glyph_dot('T', 0, 4) && glyph_dot('T', 6, 2));
  EXPECT_FALSE(glyph_dot('T', 6, 0) || glyph_dot('T', 7, 2));
  EXPECT_EQ(glyph_dot('\n', 0, 2), glyph_dot('?', 0, 2));
}

}  // namespace
}  // namespace quire::drawing
