// Turns cells into characters and adds the frame and the legend. Draw layer.
#include "draw/terminal.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "draw/palette.h"
#include "draw/wrap.h"
#include "runtime/ceil_div.h"

namespace quire::drawing {
namespace {

constexpr std::array<std::string_view, 8> kBars = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
constexpr std::array<std::string_view, 10> kDigits = {"0", "1", "2", "3", "4",
                                                      "5", "6", "7", "8", "9"};

constexpr std::size_t kTitleColumns = 100;

struct FrameParts {
  std::string_view line, side, tick_down, tick_left;
  std::string_view top_left, top_right, bottom_left, bottom_right;
};
constexpr FrameParts kUnicodeFrame = {"─", "│", "┬", "┤", "┌", "┐", "└", "┘"};
constexpr FrameParts kAsciiFrame = {"-", "|", "+", "+", "+", "+", "+", "+"};

// The nearest of the 6 x 6 x 6 colours that every colour terminal has.
int terminal_colour(const Colour& colour) {
  const auto nearest = [](int value) {
    return value < 48 ? 0 : value < 115 ? 1 : (value - 35) / 40;
  };
  return 16 + 36 * nearest(colour.r) + 6 * nearest(colour.g) + nearest(colour.b);
}

bool is_blank(Ink ink) { return ink == kInkHidden || ink == kInkMasked; }

// Writes coloured characters and switches colour only when it changes.
class Pen {
 public:
  explicit Pen(std::string& text) : text_(text) {}

  void put(std::string_view character, int front = -1, int back = -1) {
    const std::string colours = (front < 0 ? "" : fmt::format(";38;5;{}", front)) +
                                (back < 0 ? "" : fmt::format(";48;5;{}", back));
    if (colours != colours_) text_ += fmt::format("\x1b[0{}m", colours);
    colours_ = colours;
    text_ += character;
  }
  void end() {
    if (!colours_.empty()) text_ += "\x1b[0m";
    colours_.clear();
  }

 private:
  std::string& text_;
  std::string colours_;
};

class Drawing {
 public:
  Drawing(const Picture& picture, DrawStyle style, int width)
      : picture_(picture),
        style_(style),
        shape_(cell_shape(picture, style, width)),
        frame_(style == DrawStyle::kAscii ? kAsciiFrame : kUnicodeFrame),
        inks_(cell_inks(picture)),
        scale_(picture),
        rows_(picture.q.cells()),
        cols_(picture.kv.cells()),
        line_rows_(shape_ == CellShape::kHalf ? 2 : 1),
        cell_columns_(shape_ == CellShape::kWide ? 2 : 1) {
    const std::int64_t end = picture.q.begin + picture.q.length;
    margin_ = std::max({std::to_string(end).size(), picture.q.name.size(), picture.kv.name.size()});
  }

  std::string text() const {
    std::string result;
    for (const std::string& line : wrap(picture_.title, kTitleColumns, 3)) result += line + "\n";
    result += picture_.caption + "\n\n" + top();
    const std::int64_t lines = ceil_div(rows_, line_rows_);
    const std::int64_t labelled = lines > 8 ? 4 : lines > 4 ? 2 : 1;
    for (std::int64_t line = 0; line < lines; ++line) {
      const bool tick = line % labelled == 0;
      const std::int64_t at = picture_.q.begin + line * line_rows_ * picture_.q.step;
      result += fmt::format("{:>{}} {}{}{}\n", tick ? std::to_string(at) : "", margin_,
                            tick ? frame_.tick_left : frame_.side, cells(line), frame_.side);
    }
    result +=
        fmt::format("{:>{}} {}", picture_.q.begin + picture_.q.length, margin_, frame_.bottom_left);
    for (std::int64_t column = 0; column < columns(); ++column) result += frame_.line;
    return result + fmt::format("{}\n\n{}\n", frame_.bottom_right, legend());
  }

 private:
  std::int64_t columns() const { return cols_ * cell_columns_; }
  Ink ink(std::int64_t row, std::int64_t col) const {
    if (row >= rows_) return kInkHidden;  // the lower half of the last line
    return inks_[row * cols_ + col];
  }

  // Positions of the keys, and the upper side of the frame with their ticks.
  std::string top() const {
    const std::string last = std::to_string(picture_.kv.begin + picture_.kv.length);
    std::int64_t every = 4;  // columns
    while (every < static_cast<std::int64_t>(last.size()) + 2) every *= 2;
    std::string labels, line;
    for (std::int64_t column = 0; column < columns(); ++column) {
      const std::string label =
          std::to_string(picture_.kv.begin + column / cell_columns_ * picture_.kv.step);
      const auto end = column + static_cast<std::int64_t>(label.size());
      const bool tick = column % every == 0 && (column == 0 || end < columns());
      line += tick ? frame_.tick_down : frame_.line;
      if (!tick) continue;
      labels.resize(column, ' ');
      labels += label;
    }
    labels.resize(std::max<std::size_t>(columns(), labels.size() + 1), ' ');
    return fmt::format("{:>{}}  {}{}\n{:>{}} {}{}{}\n", picture_.kv.name, margin_, labels, last,
                       picture_.q.name, margin_, frame_.top_left, line, frame_.top_right);
  }

  std::string cells(std::int64_t line) const {
    std::string text;
    Pen pen(text);
    for (std::int64_t col = 0; col < cols_; ++col) {
      const std::int64_t row = line * line_rows_;
      for (int i = 0; i < cell_columns_; ++i) {
        if (shape_ == CellShape::kHalf)
          put_halves(pen, ink(row, col), ink(row + 1, col));
        else
          put_cell(pen, row, col);
      }
    }
    pen.end();
    return text;
  }

  void put_cell(Pen& pen, std::int64_t row, std::int64_t col) const {
    const Ink paint = ink(row, col);
    if (style_ != DrawStyle::kColour)
      pen.put(character(row, col));
    else if (is_blank(paint))
      pen.put("·");
    else
      pen.put("█", colour(paint));
  }

  void put_halves(Pen& pen, Ink upper, Ink lower) const {
    if (is_blank(upper) && is_blank(lower))
      pen.put("·");
    else if (is_blank(upper))
      pen.put("▄", colour(lower));
    else if (is_blank(lower))
      pen.put("▀", colour(upper));
    else if (upper == lower)
      pen.put("█", colour(upper));
    else
      pen.put("▀", colour(upper), colour(lower));
  }

  int colour(Ink ink) const {
    return style_ == DrawStyle::kColour ? terminal_colour(dark_colour(ink)) : -1;
  }

  std::string_view character(std::int64_t row, std::int64_t col) const {
    const CellKind kind = picture_.kind(row, col);
    if (kind != CellKind::kVisible || !picture_.is_heat_map()) return kind_character(kind);
    return level_character(picture_.values[row * cols_ + col]);
  }

  std::string_view kind_character(CellKind kind) const {
    constexpr std::array<std::string_view, 5> kUnicode = {"·", "▒", "█", "?", "∞"};
    constexpr std::array<std::string_view, 5> kAscii = {".", "+", "#", "?", "^"};
    return (style_ == DrawStyle::kAscii ? kAscii : kUnicode)[static_cast<std::size_t>(kind)];
  }

  // Divides the range of values into as many steps as there are characters.
  std::string_view level_character(double value) const {
    const std::size_t count = style_ == DrawStyle::kAscii ? kDigits.size() : kBars.size();
    const double range = scale_.most - scale_.least;
    const double share = range > 0 ? (value - scale_.least) / range : 0;
    const auto level =
        std::min(static_cast<std::size_t>(share * static_cast<double>(count)), count - 1);
    return style_ == DrawStyle::kAscii ? kDigits[level] : kBars[level];
  }

  std::string legend() const {
    std::string text;
    Pen pen(text);
    const auto entry = [&](CellKind kind, std::string_view what) {
      const bool painted = style_ == DrawStyle::kColour && kind != CellKind::kHidden;
      pen.put(painted ? "█" : kind_character(kind), painted ? colour(static_cast<Ink>(kind)) : -1);
      pen.end();
      text += fmt::format(" {}   ", what);
    };
    if (picture_.is_heat_map()) {
      text += heat_legend();
      if (picture_.has(CellKind::kHidden)) entry(CellKind::kHidden, "hidden (-inf)");
      if (picture_.has(CellKind::kNan)) entry(CellKind::kNan, "NaN");
      if (picture_.has(CellKind::kInfinite)) entry(CellKind::kInfinite, "+inf");
    } else {
      entry(CellKind::kVisible, picture_.elements ? "visible" : "full");
      if (!picture_.elements) entry(CellKind::kPartial, "partial");
      entry(CellKind::kHidden, picture_.elements ? "hidden" : "empty");
    }
    text.resize(text.find_last_not_of(' ') + 1);
    return text;
  }

  std::string heat_legend() const {
    if (!picture_.has(CellKind::kVisible)) return "";
    if (style_ != DrawStyle::kColour) {
      const std::string least =
          fmt::format("{} = {:.4g}", level_character(scale_.least), scale_.least);
      if (scale_.least == scale_.most) return least + "   ";
      return fmt::format("{} to {} = {:.4g}   ", least, level_character(scale_.most), scale_.most);
    }
    std::string text = fmt::format("{:.4g} ", scale_.low);
    Pen pen(text);
    const int low = scale_.level(scale_.low), high = scale_.level(scale_.high);
    for (int level = low; level <= high; level += 4)
      pen.put("█", colour(static_cast<Ink>(kInkZero + level)));
    pen.end();
    return text + fmt::format(" {:.4g}   ", scale_.high);
  }

  const Picture& picture_;
  DrawStyle style_;
  CellShape shape_;
  const FrameParts& frame_;
  std::vector<Ink> inks_;
  HeatScale scale_;
  std::int64_t rows_, cols_;
  std::int64_t line_rows_;     // rows of cells in a line
  std::int64_t cell_columns_;  // characters of a cell
  std::size_t margin_;         // characters left of the frame
};

}  // namespace

CellShape cell_shape(const Picture& picture, DrawStyle style, int width) {
  if (2 * picture.kv.cells() <= width && 2 * picture.q.cells() <= width) return CellShape::kWide;
  const bool two_kinds = !picture.is_heat_map() && !picture.has(CellKind::kPartial);
  if (style == DrawStyle::kColour || (style == DrawStyle::kUnicode && two_kinds))
    return CellShape::kHalf;
  return CellShape::kTall;
}

CellLimit terminal_limit(std::int64_t q_len, std::int64_t kv_len, int width, bool halves) {
  CellLimit limit = fit_cells(q_len, kv_len, width);
  if (!halves) limit.q = std::max<std::int64_t>(limit.q / 2, 1);
  return limit;
}

std::string terminal_text(const Picture& picture, DrawStyle style, int width) {
  return Drawing(picture, style, width).text();
}

}  // namespace quire::drawing
