// The colour tables: blue, orange and purple of Okabe and Ito for kinds of cells, a scale from blue
// through white to orange for values. Draw layer.
#include "draw/palette.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace quire::drawing {
namespace {

Colour mix(const Colour& a, const Colour& b, double share) {
  const auto between = [&](std::uint8_t x, std::uint8_t y) {
    return static_cast<std::uint8_t>(std::lround(x + share * (y - x)));
  };
  return {between(a.r, b.r), between(a.g, b.g), between(a.b, b.b)};
}

Colour level_colour(int level) {
  constexpr Colour kZero{247, 247, 247};
  constexpr Colour kMiddle[2] = {{146, 197, 222}, {253, 184, 99}},
                   kEnd[2] = {{24, 88, 160}, {166, 74, 0}};
  const int side = level < 0 ? 0 : 1;
  const double share = std::abs(level) / static_cast<double>(kLevels);
  return share < 0.5 ? mix(kZero, kMiddle[side], 2 * share)
                     : mix(kMiddle[side], kEnd[side], 2 * share - 1);
}

}  // namespace

Colour light_colour(Ink ink) {
  switch (ink) {
    case kInkHidden:
      return {233, 236, 240};
    case kInkPartial:
      return {230, 159, 0};
    case kInkVisible:
      return {0, 114, 178};
    case kInkNan:
      return {204, 57, 143};
    case kInkInfinite:
      return {0, 158, 115};
    case kInkMasked:
      return {138, 145, 153};
    case kInkGround:
      return {255, 255, 255};
    case kInkText:
      return {32, 36, 42};
    case kInkFrame:
      return {120, 128, 138};
    default:
      return level_colour(ink - kInkZero);
  }
}

Colour dark_colour(Ink ink) {
  switch (ink) {
    case kInkHidden:
      return {42, 48, 57};
    case kInkVisible:
      return {43, 143, 208};
    case kInkMasked:
      return {70, 76, 84};
    case kInkGround:
      return {22, 26, 32};
    case kInkText:
      return {230, 233, 237};
    default:
      return light_colour(ink);
  }
}

HeatScale::HeatScale(const Picture& picture) {
  bool first = true;
  for (std::size_t i = 0; i < picture.values.size(); ++i) {
    if (picture.kinds[i] != CellKind::kVisible) continue;
    const double value = picture.values[i];
    least = first ? value : std::min(least, value);
    most = first ? value : std::max(most, value);
    first = false;
  }
  const double end = std::max(std::abs(least), std::abs(most));
  low = least < 0 ? -end : 0;
  high = most > 0 ? end : 0;
}

int HeatScale::level(double value) const {
  const double end = std::max(-low, high);
  return end == 0 ? 0 : static_cast<int>(std::lround(value / end * kLevels));
}

std::vector<Ink> cell_inks(const Picture& picture) {
  std::vector<Ink> inks(picture.kinds.size());
  const HeatScale scale(picture);
  for (std::size_t i = 0; i < inks.size(); ++i) {
    inks[i] = static_cast<Ink>(picture.kinds[i]);
    if (!picture.is_heat_map()) continue;
    if (inks[i] == kInkHidden) inks[i] = kInkMasked;
    if (inks[i] == kInkVisible)
      inks[i] = static_cast<Ink>(kInkZero + scale.level(picture.values[i]));
  }
  return inks;
}

}  // namespace quire::drawing
