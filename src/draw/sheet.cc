// Lays a picture out from top to bottom: title, caption, key positions, cells (query positions on
// the left, colour bar on the right), legend. Draw layer.
#include "draw/sheet.h"

#include <fmt/format.h>

#include <algorithm>

#include "draw/wrap.h"

namespace quire::drawing {
namespace {

constexpr int kMargin = 16, kTick = 5;
constexpr int kPlot = 512;        // longer side of the cells, if they can fill it
constexpr int kLeastWidth = 600;  // room for the caption
constexpr int kMostTicks = 8;
constexpr int kGridFrom = 12;  // cells of a mask of this size or more are separated by lines

int text_width(std::size_t characters) { return static_cast<int>(characters) * kCharacterWidth; }

class Layout {
 public:
  explicit Layout(const Picture& picture) : picture_(picture), scale_(picture) {}

  Sheet run() {
    place_cells();
    add_headings();
    add_grid_and_frame();
    add_key_ticks();
    add_query_ticks();
    if (picture_.is_heat_map() && picture_.has(CellKind::kVisible)) add_colour_bar();
    add_legend();
    return std::move(sheet_);
  }

 private:
  // Sizes and the left edge; the top edge is known once the headings are placed.
  void place_cells() {
    Sheet::Cells& cells = sheet_.cells;
    cells.inks = cell_inks(picture_);
    cells.ground = picture_.is_heat_map() ? kInkMasked : kInkHidden;
    cells.rows = static_cast<int>(picture_.q.cells());
    cells.cols = static_cast<int>(picture_.kv.cells());
    const CellLimit pixels = fit_cells(picture_.q.length, picture_.kv.length, kPlot);
    cells.cell_height = std::max(static_cast<int>(pixels.q) / cells.rows, 1);
    cells.cell_width = std::max(static_cast<int>(pixels.kv) / cells.cols, 1);
    const std::size_t digits = std::to_string(picture_.q.begin + picture_.q.length).size();
    cells.x = kMargin + text_width(std::max(digits, picture_.q.name.size())) + 2 * kTick;
    const int right = text_width(std::to_string(picture_.kv.length).size()) / 2 + kMargin;
    const int bar = picture_.is_heat_map() ? kBarGap + kBarWidth + text_width(11) + kMargin : 0;
    sheet_.width = std::max(cells.x + cells.width() + std::max(right, bar), kLeastWidth);
  }

  void add_headings() {
    sheet_.title = picture_.title;
    const std::size_t most = (sheet_.width - 2 * kMargin) / kCharacterWidth;
    int y = kMargin;
    const auto add = [&](const std::string& text, bool bold) {
      for (const std::string& line : wrap(text, most, 3)) {
        y += kLineHeight;
        sheet_.labels.push_back({kMargin, y, Sheet::Align::kLeft, bold, line});
      }
    };
    add(picture_.title, true);
    y += 2;
    add(picture_.caption, false);
    y += kLineHeight + 12;
    sheet_.cells.y = y + kLineHeight + 2 * kTick;
    label(sheet_.cells.x + sheet_.cells.width() / 2, y, Sheet::Align::kCentre, picture_.kv.name);
    label(sheet_.cells.x - 2 * kTick, y, Sheet::Align::kRight, picture_.q.name);
  }

  void add_grid_and_frame() {
    const Sheet::Cells& cells = sheet_.cells;
    const int x = cells.x, y = cells.y, width = cells.width(), height = cells.height();
    const bool large = std::min(cells.cell_width, cells.cell_height) >= kGridFrom;
    if (large && !picture_.is_heat_map()) {
      for (int row = 1; row < cells.rows; ++row)
        box(x, y + row * cells.cell_height, width, 1, kInkGround);
      for (int col = 1; col < cells.cols; ++col)
        box(x + col * cells.cell_width, y, 1, height, kInkGround);
    }
    frame(x, y, width, height);
  }

  void add_key_ticks() {
    const Sheet::Cells& cells = sheet_.cells;
    const Axis& axis = picture_.kv;
    const int room = text_width(std::to_string(axis.begin + axis.length).size() + 2);
    const std::int64_t most = std::clamp(cells.width() / room, 1, kMostTicks);
    for (const std::int64_t at : tick_positions(axis.begin, axis.length, most)) {
      const int x = cells.x + offset(axis, at, cells.cell_width);
      box(x, cells.y - kTick - 1, 1, kTick, kInkFrame);
      label(x, cells.y - 2 * kTick, Sheet::Align::kCentre, std::to_string(at));
    }
  }

  void add_query_ticks() {
    const Sheet::Cells& cells = sheet_.cells;
    const Axis& axis = picture_.q;
    const std::int64_t most = std::clamp(cells.height() / (2 * kLineHeight), 1, kMostTicks);
    for (const std::int64_t at : tick_positions(axis.begin, axis.length, most)) {
      const int y = cells.y + offset(axis, at, cells.cell_height);
      box(cells.x - kTick - 1, y, kTick, 1, kInkFrame);
      label(cells.x - 2 * kTick, y + 4, Sheet::Align::kRight, std::to_string(at));
    }
  }

  static int offset(const Axis& axis, std::int64_t at, int cell) {
    return static_cast<int>(static_cast<double>(at - axis.begin) * cell /
                            static_cast<double>(axis.step));
  }

  void add_colour_bar() {
    const int x = sheet_.cells.x + sheet_.cells.width() + kBarGap, y = sheet_.cells.y;
    const int low = scale_.level(scale_.low), high = scale_.level(scale_.high);
    const int levels = high - low + 1, height = std::max(sheet_.cells.height(), 2 * kLineHeight);
    for (int i = 0; i < levels; ++i) {
      const int top = height * i / levels, bottom = height * (i + 1) / levels;
      box(x, y + top, kBarWidth, bottom - top, static_cast<Ink>(kInkZero + high - i));
    }
    frame(x, y, kBarWidth, height);
    bar_bottom_ = y + height;
    const auto number = [&](int at, double value) {
      label(x + kBarWidth + kTick, at, Sheet::Align::kLeft, fmt::format("{:.4g}", value));
    };
    number(y + 9, scale_.high);
    if (scale_.low < 0 && scale_.high > 0) number(y + height / 2 + 4, 0);
    if (levels > 1) number(y + height, scale_.low);
  }

  void add_legend() {
    constexpr int kSwatch = 12;
    int x = sheet_.cells.x;
    const int y = std::max(sheet_.cells.y + sheet_.cells.height(), bar_bottom_) + 2 * kMargin;
    const auto entry = [&](Ink ink, const std::string& text) {
      box(x, y - kSwatch + 2, kSwatch, kSwatch, ink);
      frame(x, y - kSwatch + 2, kSwatch, kSwatch);
      label(x + kSwatch + 6, y, Sheet::Align::kLeft, text);
      x += kSwatch + 6 + text_width(text.size() + 3);
    };
    if (!picture_.is_heat_map()) {
      entry(kInkVisible, picture_.elements ? "visible" : "full");
      if (!picture_.elements) entry(kInkPartial, "partial");
      entry(kInkHidden, picture_.elements ? "hidden" : "empty");
    } else {
      if (picture_.has(CellKind::kHidden)) entry(kInkMasked, "hidden (-inf)");
      if (picture_.has(CellKind::kNan)) entry(kInkNan, "NaN");
      if (picture_.has(CellKind::kInfinite)) entry(kInkInfinite, "+inf");
    }
    sheet_.height = y + kMargin;
  }

  void box(int x, int y, int width, int height, Ink ink) {
    sheet_.boxes.push_back({x, y, width, height, ink});
  }
  // Around the rectangle.
  void frame(int x, int y, int width, int height) {
    box(x - 1, y - 1, width + 2, 1, kInkFrame);
    box(x - 1, y + height, width + 2, 1, kInkFrame);
    box(x - 1, y, 1, height, kInkFrame);
    box(x + width, y, 1, height, kInkFrame);
  }
  void label(int x, int y, Sheet::Align align, const std::string& text) {
    sheet_.labels.push_back({x, y, align, false, text});
  }

  static constexpr int kBarGap = 40, kBarWidth = 16;
  const Picture& picture_;
  HeatScale scale_;
  Sheet sheet_;
  int bar_bottom_ = 0;
};

}  // namespace

Sheet lay_out(const Picture& picture) { return Layout(picture).run(); }

}  // namespace quire::drawing
