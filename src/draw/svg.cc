// Joins equal cells into rectangles and writes the SVG document. Draw layer.
#include "draw/svg.h"

#include <fmt/format.h>

#include <iterator>
#include <map>
#include <set>

namespace quire::drawing {
namespace {

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '&')
      result += "&amp;";
    else if (c == '<')
      result += "&lt;";
    else if (c == '>')
      result += "&gt;";
    else if (static_cast<unsigned char>(c) < ' ')
      result += ' ';  // XML has no control characters
    else
      result += c;
  }
  return result;
}

// Runs of equal cells in a row, joined with the equal run of the row above.
class Rectangles {
 public:
  explicit Rectangles(const Sheet::Cells& cells) : cells_(cells) {}

  /// Path data of each ink except the background.
  std::map<Ink, std::string> paths() {
    for (int row = 0; row < cells_.rows; ++row) {
      Open next;
      for (int col = 0; col < cells_.cols;) {
        const Ink ink = at(row, col);
        const int begin = col;
        while (col < cells_.cols && at(row, col) == ink) ++col;
        if (ink == cells_.ground) continue;
        const Run run{begin, col, ink};
        const auto above = open_.find(run);
        next.emplace(run, above == open_.end() ? row : above->second);
        if (above != open_.end()) open_.erase(above);
      }
      close(row);
      open_ = std::move(next);
    }
    close(cells_.rows);
    return std::move(paths_);
  }

 private:
  struct Run {
    int begin, end;
    Ink ink;
    friend auto operator<=>(const Run&, const Run&) = default;
  };
  using Open = std::map<Run, int>;  // run to the row it began in

  Ink at(int row, int col) const { return cells_.inks[row * cells_.cols + col]; }

  void close(int row) {
    for (const auto& [run, begin] : open_) {
      const int width = run.end - run.begin;
      fmt::format_to(std::back_inserter(paths_[run.ink]), "M{} {}h{}v{}h-{}z", run.begin, begin,
                     width, row - begin, width);
    }
    open_.clear();
  }

  const Sheet::Cells& cells_;
  Open open_;
  std::map<Ink, std::string> paths_;
};

std::string colour_text(const Colour& colour) {
  return fmt::format("#{:02x}{:02x}{:02x}", colour.r, colour.g, colour.b);
}

// One class per ink; inks that differ on a dark background appear again, for viewers in dark mode.
std::string style_text(const std::set<Ink>& inks) {
  std::string light, dark;
  for (const Ink ink : inks) {
    light += fmt::format(".i{}{{fill:{}}}", ink, colour_text(light_colour(ink)));
    if (light_colour(ink) != dark_colour(ink))
      dark += fmt::format(".i{}{{fill:{}}}", ink, colour_text(dark_colour(ink)));
  }
  return fmt::format("<style>{}@media (prefers-color-scheme:dark){{{}}}</style>\n", light, dark);
}

std::string boxes_text(const std::vector<Sheet::Box>& boxes) {
  std::string text;
  for (std::size_t i = 0; i < boxes.size();) {
    const Ink ink = boxes[i].ink;
    text += fmt::format("<path class=\"i{}\" d=\"", ink);
    for (; i < boxes.size() && boxes[i].ink == ink; ++i)
      text += fmt::format("M{} {}h{}v{}h-{}z", boxes[i].x, boxes[i].y, boxes[i].width,
                          boxes[i].height, boxes[i].width);
    text += "\"/>\n";
  }
  return text;
}

std::string label_text(const Sheet::Label& label) {
  constexpr const char* kAnchor[] = {"", " text-anchor=\"middle\"", " text-anchor=\"end\""};
  return fmt::format("<text x=\"{}\" y=\"{}\"{}{}>{}</text>\n", label.x, label.y,
                     kAnchor[static_cast<int>(label.align)],
                     label.bold ? " font-weight=\"bold\"" : "", escaped(label.text));
}

}  // namespace

std::string svg_text(const Sheet& sheet) {
  const Sheet::Cells& cells = sheet.cells;
  const std::map<Ink, std::string> paths = Rectangles(cells).paths();
  std::set<Ink> inks = {kInkGround, kInkText, cells.ground};
  for (const auto& [ink, path] : paths) inks.insert(ink);
  for (const Sheet::Box& box : sheet.boxes) inks.insert(box.ink);
  std::string text = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
      "viewBox=\"0 0 {0} {1}\">\n<title>{2}</title>\n{3}"
      "<rect class=\"i{4}\" width=\"{0}\" height=\"{1}\"/>\n",
      sheet.width, sheet.height, escaped(sheet.title), style_text(inks), kInkGround);
  // Crisp, so that no seams show between cells. Thin lines are not: a viewer that scales the
  // picture down would drop some of them.
  text += fmt::format(
      "<g id=\"cells\" transform=\"translate({} {}) scale({} {})\" "
      "shape-rendering=\"crispEdges\">\n<rect class=\"i{}\" width=\"{}\" height=\"{}\"/>\n",
      cells.x, cells.y, cells.cell_width, cells.cell_height, cells.ground, cells.cols, cells.rows);
  for (const auto& [ink, path] : paths)
    text += fmt::format("<path class=\"i{}\" d=\"{}\"/>\n", ink, path);
  text += "</g>\n<g>\n" + boxes_text(sheet.boxes) + "</g>\n";
  text += fmt::format(
      "<g class=\"i{}\" font-family=\"ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace\" "
      "font-size=\"11.5\">\n",
      kInkText);
  for (const Sheet::Label& label : sheet.labels) text += label_text(label);
  return text + "</g>\n</svg>\n";
}

}  // namespace quire::drawing
