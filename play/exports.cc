// What the page calls: functions over numbers and texts. Answers are JSON, or an address in the
// module's memory; both are good until the next call. Mistakes of the visitor come back as
// {"error": text}. Play.
#include <emscripten.h>
#include <fmt/format.h>

#include <chrono>
#include <exception>
#include <optional>
#include <string>

#include "quire/error.h"
#include "rule.h"

namespace quire::play {
namespace {

struct Page {
  std::optional<Rule> rule;
  std::string answer;
  std::vector<std::uint8_t> mask_cells;
  std::vector<float> score_cells;
};

Page& page() {
  static Page one;
  return one;
}

std::string quoted(std::string_view text) {
  std::string json = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\')
      json += {'\\', c};
    else if (static_cast<unsigned char>(c) < 0x20)
      json += fmt::format("\\u{:04x}", static_cast<int>(c));
    else
      json += c;
  }
  return json + '"';
}

// The answer of a function, or the text of its error.
template <class Function>
const char* answered(const Function& function) {
  std::string& answer = page().answer;
  try {
    answer = function();
  } catch (const std::exception& error) {
    answer = fmt::format("{{\"error\": {}}}", quoted(error.what()));
  }
  return answer.c_str();
}

const Rule& rule() {
  if (!page().rule.has_value()) throw Error(ErrorKind::runtime, "no rule has been read");
  return *page().rule;
}

std::int64_t whole(double number) { return static_cast<std::int64_t>(number); }

}  // namespace
}  // namespace quire::play

using namespace quire;
using namespace quire::play;

extern "C" {

EMSCRIPTEN_KEEPALIVE const char* play_gallery() {
  return answered([] {
    std::string json = "[";
    for (const mods::GalleryEntry& entry : mods::gallery()) {
      json += fmt::format(
          "{}{{\"name\": {}, \"mask\": {}, \"about\": {}, \"reference\": {}, \"q_len\": {}, "
          "\"kv_len\": {}, \"heads\": {}, \"batch\": {}}}",
          json.size() > 1 ? ", " : "", quoted(entry.name),
          entry.kind == mods::GalleryEntry::Kind::kMask, quoted(entry.description),
          quoted(entry.reference), entry.sizes.q_len, entry.sizes.kv_len, entry.sizes.heads,
          entry.sizes.batch);
    }
    return json + "]";
  });
}

EMSCRIPTEN_KEEPALIVE const char* play_entry_text(const char* name, double q_len, double kv_len,
                                                 double heads, double batch) {
  return answered([&] {
    const std::string text = mods::gallery_entry(name).full_text(
        {whole(q_len), whole(kv_len), whole(heads), whole(batch)});
    return fmt::format("{{\"text\": {}}}", quoted(text));
  });
}

EMSCRIPTEN_KEEPALIVE const char* play_read(const char* text, const char* entry, const char* tables,
                                           double q_len, double kv_len, double heads, double batch,
                                           double b, double h) {
  return answered([&] {
    page().rule.reset();
    page().rule.emplace(RuleText{.text = text,
                                 .entry = entry,
                                 .tables = tables,
                                 .sizes = {whole(q_len), whole(kv_len), whole(heads), whole(batch)},
                                 .b = whole(b),
                                 .h = whole(h)});
    std::string missing;
    for (const std::string& name : rule().without_contents())
      missing += (missing.empty() ? "" : ", ") + quoted(name);
    return fmt::format("{{\"mask\": {}, \"without_contents\": [{}], \"explained\": {}}}",
                       rule().is_mask(), missing, quoted(rule().explained()));
  });
}

EMSCRIPTEN_KEEPALIVE const char* play_prove(double block, int most_steps) {
  return answered([&] {
    const auto begin = std::chrono::steady_clock::now();
    const MaskNumbers numbers = rule().prove(whole(block), static_cast<std::size_t>(most_steps));
    const std::chrono::duration<double, std::milli> took =
        std::chrono::steady_clock::now() - begin;
    std::string steps;
    for (const ProofStep& step : numbers.report.steps)
      steps += fmt::format("{}[{},{},{},{},{}]", steps.empty() ? "" : ",", step.q_begin, step.q_end,
                           step.kv_begin, step.kv_end, static_cast<int>(step.outcome));
    return fmt::format(
        "{{\"ms\": {}, \"sparsity\": {}, \"full\": {}, \"partial\": {}, \"empty\": {}, \"bytes\": "
        "{}, \"rectangles\": {}, \"evaluated\": {}, \"area\": {}, \"steps\": [{}]}}",
        took.count(), numbers.sparsity, numbers.full, numbers.partial, numbers.empty, numbers.bytes,
        numbers.report.rectangles, numbers.report.evaluated, numbers.report.area, steps);
  });
}

// {"cells": address}: a byte a cell of a mask, a float a cell of a score mod.
EMSCRIPTEN_KEEPALIVE const char* play_view(double q_begin, double kv_begin, double cell, int rows,
                                           int cols, double score) {
  return answered([&] {
    const ViewPort port{whole(q_begin), whole(kv_begin), whole(cell), rows, cols};
    const void* cells = nullptr;
    if (rule().is_mask()) {
      page().mask_cells = rule().mask_cells(port);
      cells = page().mask_cells.data();
    } else {
      page().score_cells = rule().score_cells(port, static_cast<float>(score));
      cells = page().score_cells.data();
    }
    return fmt::format("{{\"cells\": {}}}", reinterpret_cast<std::uintptr_t>(cells));
  });
}

}  // extern "C"
