// Colours of drawings. An ink is an index that stands for a role (a partial block, text, a level of
// a heat map); each ink has a colour for light and one for dark backgrounds. Blue and orange can be
// told apart with any kind of colour vision. Draw layer.
#pragma once
#include <cstdint>
#include <vector>

#include "draw/picture.h"

namespace quire::drawing {

struct Colour {
  std::uint8_t r, g, b;
  friend bool operator==(const Colour&, const Colour&) = default;
};

using Ink = std::uint8_t;
// The first five are the CellKinds.
inline constexpr Ink kInkHidden = 0, kInkPartial = 1, kInkVisible = 2, kInkNan = 3,
                     kInkInfinite = 4;
inline constexpr Ink kInkMasked = 5;  // hidden in a heat map, where the background means 0
inline constexpr Ink kInkGround = 6, kInkText = 7, kInkFrame = 8;
// Heat maps: kInkZero - 32 is the lowest, kInkZero + 32 the highest level.
inline constexpr int kLevels = 32;
inline constexpr Ink kInkZero = 64;
inline constexpr int kInks = kInkZero + kLevels + 1;

Colour light_colour(Ink ink);
Colour dark_colour(Ink ink);

/// The range of a heat map: symmetric about 0 if there are values of both signs, so that 0 always
/// has the same colour; otherwise it starts at 0.
struct HeatScale {
  double low = 0, high = 0;    // ends of the colour bar; both 0 if all values are 0
  double least = 0, most = 0;  // smallest and largest value

  explicit HeatScale(const Picture& picture);
  /// -32..32.
  int level(double value) const;
};

/// The ink of every cell.
std::vector<Ink> cell_inks(const Picture& picture);

}  // namespace quire::drawing
