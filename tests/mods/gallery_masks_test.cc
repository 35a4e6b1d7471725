// Masks of the gallery that are in no function, each against loops over coordinates.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "quire/mods.h"
#include "tests/mods/expect_mod.h"

namespace quire::mods {
namespace {

using testing::MaskRule;

void expect_entry(const char* name, const GallerySizes& at, MaskRule rule) {
  SCOPED_TRACE(name);
  testing::expect_mask(gallery_entry(name).mask_mod(at), {at.batch, at.heads, at.q_len, at.kv_len},
                       rule);
}

GallerySizes square(std::int64_t length) { return {.q_len = length, .kv_len = length}; }

// The keys that a window of 2 * reach + 1 places around `place`, pushed inside 0 .. count - 1,
// holds.
bool in_window(std::int64_t place, std::int64_t key, std::int64_t reach, std::int64_t count) {
  std::int64_t first = place - reach;
  if (first + 2 * reach > count - 1) first = count - 1 - 2 * reach;
  if (first < 0) first = 0;
  return key >= first && key <= first + 2 * reach;
}

TEST(GalleryMasks, DilatedWindow) {
  for (const std::int64_t length : {64, 113}) {
    expect_entry("dilated_window", square(length), [&](auto, auto, auto q, auto kv) {
      for (std::int64_t step = 0; step <= length / 4; step += 3)
        if (kv == q + step || kv == q - step) return true;
      return false;
    });
  }
}

TEST(GalleryMasks, GlobalSliding) {
  for (const GallerySizes& at : {square(64), GallerySizes{.q_len = 113, .kv_len = 203}}) {
    expect_entry("global_sliding", at, [&](auto, auto, auto q, auto kv) {
      if (q < 4 || kv < 4) return true;
      return std::abs(q - kv) <= at.kv_len / 16;
    });
  }
}

// The three cases of the paper: within a block, noisy to clean before it, clean to clean up to it.
TEST(GalleryMasks, BlockDiffusion) {
  for (const std::int64_t length : {64, 150, 400}) {
    const std::int64_t n = length / 2;
    expect_entry("block_diffusion", square(length), [&](auto, auto, auto q, auto kv) {
      const bool q_is_clean = q >= n, kv_is_clean = kv >= n;
      const std::int64_t q_block = (q % n) / 8, kv_block = (kv % n) / 8;
      if (!q_is_clean && !kv_is_clean) return q_block == kv_block;
      if (!q_is_clean) return kv_block < q_block;
      return kv_is_clean && kv_block <= q_block;
    });
  }
}

TEST(GalleryMasks, Natten) {
  for (const auto& [width, height] :
       {std::pair<std::int64_t, std::int64_t>{16, 16}, {10, 11}, {5, 5}}) {
    const std::int64_t rx = std::min<std::int64_t>(3, (width - 1) / 2),
                       ry = std::min<std::int64_t>(3, (height - 1) / 2);
    expect_entry("natten_2d", square(width * height),
                 [&, width = width, height = height](auto, auto, auto q, auto kv) {
                   return in_window(q % width, kv % width, rx, width) &&
                          in_window(q / width, kv / width, ry, height);
                 });
  }
}

// Every pixel sees a whole window, also at the edges.
TEST(GalleryMasks, NattenSeesFortyNinePixels) {
  for (const char* name : {"natten_2d", "natten_2d_tiled"}) {
    const Tensor mask = evaluate(gallery_entry(name).mask_mod(), {1, 1, 256, 256});
    for (int q = 0; q < 256; ++q)
      EXPECT_EQ(
          std::count(mask.data_as<bool>() + q * 256, mask.data_as<bool>() + q * 256 + 256, true),
          49)
          << name << " " << q;
  }
}

TEST(GalleryMasks, NattenTiled) {
  for (const auto& [tiles_x, tiles_y] :
       {std::pair<std::int64_t, std::int64_t>{4, 4}, {5, 6}, {2, 2}}) {
    // The pixels in the order of the tokens.
    std::vector<std::array<std::int64_t, 2>> pixels;
    for (std::int64_t ty = 0; ty < tiles_y; ++ty)
      for (std::int64_t tx = 0; tx < tiles_x; ++tx)
        for (std::int64_t y = 0; y < 4; ++y)
          for (std::int64_t x = 0; x < 4; ++x) pixels.push_back({tx * 4 + x, ty * 4 + y});
    const auto at = [&](std::int64_t i) { return pixels[static_cast<std::size_t>(i)]; };
    expect_entry("natten_2d_tiled", square(tiles_x * tiles_y * 16),
                 [&, width = tiles_x * 4, height = tiles_y * 4](auto, auto, auto q, auto kv) {
                   return in_window(at(q)[0], at(kv)[0], 3, width) &&
                          in_window(at(q)[1], at(kv)[1], 3, height);
                 });
  }
}

TEST(GalleryMasks, SlidingTile2d) {
  for (const std::int64_t pixels : {4, 9}) {
    std::vector<std::array<std::int64_t, 2>> tiles;  // of each token
    for (std::int64_t y = 0; y < 8; ++y)
      for (std::int64_t x = 0; x < 8; ++x)
        for (std::int64_t i = 0; i < pixels; ++i) tiles.push_back({x, y});
    const auto at = [&](std::int64_t i) { return tiles[static_cast<std::size_t>(i)]; };
    expect_entry("sliding_tile_2d", square(pixels * 64), [&](auto, auto, auto q, auto kv) {
      return in_window(at(q)[0], at(kv)[0], 1, 8) && in_window(at(q)[1], at(kv)[1], 1, 8);
    });
  }
}

TEST(GalleryMasks, SlidingTile3d) {
  for (const std::int64_t pixels : {4, 9}) {
    std::vector<std::array<std::int64_t, 3>> tiles;
    for (std::int64_t t = 0; t < 4; ++t)
      for (std::int64_t y = 0; y < 4; ++y)
        for (std::int64_t x = 0; x < 4; ++x)
          for (std::int64_t i = 0; i < pixels; ++i) tiles.push_back({x, y, t});
    const auto at = [&](std::int64_t i) { return tiles[static_cast<std::size_t>(i)]; };
    expect_entry("sliding_tile_3d", square(pixels * 64), [&](auto, auto, auto q, auto kv) {
      for (std::size_t axis = 0; axis < 3; ++axis)
        if (!in_window(at(q)[axis], at(kv)[axis], 1, 4)) return false;
      return true;
    });
  }
}

TEST(GalleryMasks, VideoHeads) {
  for (const std::int64_t pixels : {16, 40}) {
    const GallerySizes at = {.q_len = pixels * 8, .kv_len = pixels * 8, .heads = 3};
    expect_entry("video_heads", at, [&](auto, auto h, auto q, auto kv) {
      const std::int64_t q_frame = q / pixels, kv_frame = kv / pixels;
      if (kv_frame == 0) return true;
      if (h != 1) return std::abs(q_frame - kv_frame) <= 1;
      const std::int64_t apart = (q - q_frame * pixels) - (kv - kv_frame * pixels);
      return std::abs(apart) <= pixels / 16;
    });
  }
}

TEST(GalleryMasks, VisionCross) {
  for (const GallerySizes& at :
       {GallerySizes{.q_len = 48, .kv_len = 64}, {.q_len = 113, .kv_len = 203}}) {
    const std::int64_t patches = (at.kv_len + 3) / 4;
    expect_entry("vision_cross", at, [&](auto, auto, auto q, auto kv) {
      std::int64_t image = 0;
      while ((image + 1) * patches <= kv) ++image;
      const std::int64_t begin = image * at.q_len / 4, next = (image + 1) * at.q_len / 4;
      return q >= begin && q < next + at.q_len / 8;
    });
  }
}

}  // namespace
}  // namespace quire::mods
