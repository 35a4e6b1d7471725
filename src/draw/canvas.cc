// Paints a sheet: filled rectangles and letters of a built-in 5 x 9 bitmap font. Draw layer.
#include "draw/canvas.h"

#include <algorithm>

namespace quire::drawing {
namespace {

// Nine rows of five bits per character, starting at the top left.
// clang-format off
constexpr std::uint64_t kGlyphs[95] = {
    0x000000000000, 0x042108401000, 0x0a5280000000, 0x0a57d5f52800, 0x047d1c5f1000,  // space ! " # $
    0x18c888898c00, 0x0c9511593400, 0x042100000000, 0x022210820800, 0x082084222000,  // % & ' ( )
    0x00255d520000, 0x00213e420000, 0x000000061100, 0x00003e000000, 0x000000063000,  // * + , - .
    0x000888880000, 0x0e8ceb98b800, 0x046108423800, 0x0e8844447c00, 0x1f110418b800,  // / 0 1 2 3
    0x0232a5f10800, 0x1f878218b800, 0x06443d18b800, 0x1f0888842000, 0x0e8c5d18b800,  // 4 5 6 7 8
    0x0e8c5e113000, 0x006300c60000, 0x006300061100, 0x022220820800, 0x0007c1f00000,  // 9 : ; < =
    0x082082222000, 0x0e8844401000, 0x0e885b5ab800, 0x045463f8c400, 0x1e8c7d18f800,  // > ? @ A B
    0x0e8c2108b800, 0x1c9463197000, 0x1f843d087c00, 0x1f843d084000, 0x0e8c2f18bc00,  // C D E F G
    0x118c7f18c400, 0x0e2108423800, 0x071084293000, 0x119531494400, 0x108421087c00,  // H I J K L
    0x11dd6b18c400, 0x118e6b38c400, 0x0e8c6318b800, 0x1e8c7d084000, 0x0e8c63593400,  // M N O P Q
    0x1e8c7d494400, 0x0f841c10f800, 0x1f2108421000, 0x118c6318b800, 0x118c63151000,  // R S T U V
    0x118c6b5aa800, 0x118a88a8c400, 0x118a88421000, 0x1f0888887c00, 0x0e4210843800,  // W X Y Z [
    0x008208208000, 0x0e1084213800, 0x045440000000, 0x0000000003e0, 0x082080000000,  // \ ] ^ _ `
    0x000382f8bc00, 0x1085b318f800, 0x0003a108b800, 0x010b6718bc00, 0x0003a3f83800,  // a b c d e
    0x064a38842000, 0x0003e318bc2e, 0x1085b318c400, 0x040308423800, 0x020184210a4c,  // f g h i j
    0x1084a98a4800, 0x0c2108423800, 0x0006ab58c400, 0x0005b318c400, 0x0003a318b800,  // k l m n o
    0x0007a318fa10, 0x0003e318bc21, 0x0005b3084000, 0x0003a0e0f800, 0x084710849800,  // p q r s t
    0x00046319b400, 0x000463151000, 0x0004635aa800, 0x000454454400, 0x00046319b42e,  // u v w x y
    0x0007c4447c00, 0x022110420800, 0x042108421000, 0x082104422000, 0x00022a200000,  // z { | } ~
};
// clang-format on

constexpr int kScale = 2;  // dots per pixel of the sheet, and per dot of the font
constexpr int kAdvance = (kGlyphWidth + 1) * kScale;

class Painter {
 public:
  explicit Painter(const Sheet& sheet) {
    canvas_.width = sheet.width * kScale;
    canvas_.height = sheet.height * kScale;
    canvas_.rgb.resize(canvas_.width * canvas_.height * 3);
  }

  // In dots; clipped.
  void fill(int x, int y, int width, int height, const Colour& colour) {
    const int right = std::min(x + width, canvas_.width);
    const int bottom = std::min(y + height, canvas_.height);
    for (int row = std::max(y, 0); row < bottom; ++row) {
      for (int col = std::max(x, 0); col < right; ++col) {
        std::uint8_t* dot = canvas_.rgb.data() + (row * canvas_.width + col) * 3;
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
    std::string text;  // one byte per character: the font is ASCII only
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

bool glyph_dot(char character, int row, int col) {
  if (character < ' ' || character > '~') character = '?';
  const int bit = kGlyphWidth * kGlyphHeight - 1 - (row * kGlyphWidth + col);
  return (kGlyphs[character - ' '] >> bit & 1) != 0;
}

Canvas paint(const Sheet& sheet) {
  Painter painter(sheet);
  painter.fill_box({0, 0, sheet.width, sheet.height, kInkGround});
  const Sheet::Cells& cells = sheet.cells;
  for (int row = 0; row < cells.rows; ++row) {
    for (int col = 0; col < cells.cols; ++col) {
      const Ink ink = cells.inks[row * cells.cols + col];
      painter.fill_box({cells.x + col * cells.cell_width, cells.y + row * cells.cell_height,
                        cells.cell_width, cells.cell_height, ink});
    }
  }
  for (const Sheet::Box& box : sheet.boxes) painter.fill_box(box);
  for (const Sheet::Label& label : sheet.labels) painter.write(label);
  return painter.take();
}

}  // namespace quire::drawing
