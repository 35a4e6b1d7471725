// Sheet: a picture laid out in pixels, with axes, ticks, legend and colour bar. SVG and PNG are two
// encodings of a sheet. Draw layer.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "draw/palette.h"
#include "draw/picture.h"

namespace quire::drawing {

struct Sheet {
  struct Box {
    int x, y, width, height;
    Ink ink;
  };
  enum class Align : std::uint8_t { kLeft, kCentre, kRight };
  struct Label {
    int x, y;  // of the baseline; x is the left end, centre or right end
    Align align;
    bool bold;
    std::string text;
  };
  struct Cells {
    int x = 0, y = 0, cell_width = 1, cell_height = 1;
    int rows = 0, cols = 0;
    std::vector<Ink> inks;  // [rows, cols]
    Ink ground = kInkHidden;

    int width() const { return cols * cell_width; }
    int height() const { return rows * cell_height; }
  };

  int width = 0, height = 0;
  std::string title;
  Cells cells;             // drawn first
  std::vector<Box> boxes;  // then these, in order
  std::vector<Label> labels;
};

/// Assumed width of a character and height of a line.
inline constexpr int kCharacterWidth = 7, kLineHeight = 16;

Sheet lay_out(const Picture& picture);

}  // namespace quire::drawing
