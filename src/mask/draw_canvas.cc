// Rectangles and letters in dots. Mask layer.
#include "mask/draw_canvas.h"

#include <algorithm>

#include "mask/draw_font.h"

namespace quire::mask {
namespace {

constexpr int kScale = 2;  // dots per pixel of the sheet, and per dot of the font
constexpr int kAdvance = (kGlyphWidth + 1) * kScale;

class Painter {
 public:
  explicit Painter(const Sheet& sheet) {
    canvas_.width = sheet.width * kScale;
    canvas_.height = sheet.height * kScale;
    canvas_.rgb.resize(static_cast<std::size_t>(canvas_.width) *
                       static_cast<std::size_t>(canvas_.height) * 3);
  }

  // In dots; what lies outside is left out.
  void fill(int x, int y, int width, int height, const Colour& colour) {
    const int right = std::min(x + width, canvas_.width);
    const int bottom = std::min(y + height, canvas_.height);
    for (int row = std::max(y, 0); row < bottom; ++row) {
      for (int col = std::max(x, 0); col < right; ++col) {
        std::uint8_t* dot = canvas_.rgb.data() + (static_cast<std::size_t>(row) *
                                                      static_cast<std::size_t>(canvas_.width) +
                                                  static_cast<std::size_t>(col)) *
                                                     3;
        dot[0] = colour.r;
        dot[1] = colour.g;
        dot[2] = colour.b;
      }
    }
  }

  void fill_box(const Sheet::Box& box) {
    fill(box.x * kScale, box.y * kScale, box.width * kScale, box.height * kScale,
         light_colour(box.ink));
  }

  void write(const Sheet::Label& label) {
    std::string text;  // a byte a character: the font has ASCII only
    for (const char c : label.text)
      if ((static_cast<unsigned char>(c) & 0xC0) != 0x80) text += c;
    int x = label.x * kScale;
    const int width = static_cast<int>(text.size()) * kAdvance - kScale;
    if (label.align == Sheet::Align::kCentre) x -= width / 2;
    if (label.align == Sheet::Align::kRight) x -= width;
    const int top = label.y * kScale - (kGlyphHeight - kGlyphDescent) * kScale;
    for (const char c : text) {
      write_character(c, x, top, label.bold ? kScale + 1 : kScale);
      x += kAdvance;
    }
  }

  Canvas take() { return std::move(canvas_); }

 private:
  void write_character(char c, int x, int y, int dot_width) {
    for (int row = 0; row < kGlyphHeight; ++row)
      for (int col = 0; col < kGlyphWidth; ++col)
        if (glyph_dot(c, row, col))
          fill(x + col * kScale, y + row * kScale, dot_width, kScale, light_colour(kInkText));
  }

  Canvas canvas_;
};

}  // namespace

Canvas paint(const Sheet& sheet) {
  Painter painter(sheet);
  painter.fill_box({0, 0, sheet.width, sheet.height, kInkGround});
  const Sheet::Cells& cells = sheet.cells;
  for (int row = 0; row < cells.rows; ++row) {
    for (int col = 0; col < cells.cols; ++col) {
      const Ink ink =
          cells.inks[static_cast<std::size_t>(row) * static_cast<std::size_t>(cells.cols) +
                     static_cast<std::size_t>(col)];
      painter.fill_box({cells.x + col * cells.cell_width, cells.y + row * cells.cell_height,
                        cells.cell_width, cells.cell_height, ink});
    }
  }
  for (const Sheet::Box& box : sheet.boxes) painter.fill_box(box);
  for (const Sheet::Label& label : sheet.labels) painter.write(label);
  return painter.take();
}

}  // namespace quire::mask
