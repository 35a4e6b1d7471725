// The format of gallery.txt: fields, continued lines, and the errors of a text that is not in it.
#include "mods/gallery_parse.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace quire::mods {
namespace {

using testing::expect_error;

constexpr const char* kWhole = R"(# a comment

[one]
kind: mask
about: what: it is
reference: Somebody, 2020
sizes: q_len = 8, kv_len = 16, heads = 2, batch = 3
let: W = 4
let: half = kv_len // 2
table: t i32[kv_len, 2] = kv_idx == 1
table: u f32[W] =
  x = kv_idx
  x * 2
formula:
  d = q_idx - kv_idx
  (d < W) & (t[kv_idx, 0] == 0)
[two]
kind: score
about: b
reference: c
sizes: q_len = 1
formula: score
)";

TEST(GalleryParse, Fields) {
  const std::vector<GalleryEntry> entries = parse_gallery(kWhole);
  ASSERT_EQ(entries.size(), 2u);
  const GalleryEntry& one = entries[0];
  EXPECT_EQ(one.name, "one");
  EXPECT_EQ(one.kind, GalleryEntry::Kind::kMask);
  EXPECT_EQ(one.description, "what: it is");
  EXPECT_EQ(one.reference, "Somebody, 2020");
  EXPECT_EQ(one.sizes, (GallerySizes{.q_len = 8, .kv_len = 16, .heads = 2, .batch = 3}));
  ASSERT_EQ(one.parameters.size(), 2u);
  EXPECT_EQ(one.parameters[1].name, "half");
  EXPECT_EQ(one.parameters[1].text, "kv_len // 2");
  ASSERT_EQ(one.tables.size(), 2u);
  EXPECT_EQ(one.tables[0].name, "t");
  EXPECT_EQ(one.tables[0].dtype, DType::i32);
  EXPECT_EQ(one.tables[0].shape, (std::vector<std::string>{"kv_len", "2"}));
  EXPECT_EQ(one.tables[0].text, "kv_idx == 1");
  EXPECT_EQ(one.tables[1].text, "x = kv_idx\nx * 2");
  EXPECT_EQ(one.text, "\nd = q_idx - kv_idx\n(d < W) & (t[kv_idx, 0] == 0)");
  EXPECT_EQ(entries[1].kind, GalleryEntry::Kind::kScore);
  EXPECT_EQ(entries[1].sizes, GallerySizes());
}

TEST(GalleryParse, OfNothing) { EXPECT_TRUE(parse_gallery("# none\n\n").empty()); }

TEST(GalleryParse, TextsAreBoundToTheSizes) {
  const GalleryEntry one = parse_gallery(kWhole)[0];
  EXPECT_EQ(one.full_text({.q_len = 5, .kv_len = 7}),
            "W = 4; \nd = q_idx - kv_idx\n(d < W) & (t[kv_idx, 0] == 0)");
  const NamedBuffers buffers = one.buffers({.q_len = 5, .kv_len = 7});
  ASSERT_EQ(buffers.size(), 2u);
  EXPECT_EQ(buffers[0].second.shape(), (Shape{7, 2}));
  EXPECT_EQ(buffers[0].second.dtype(), DType::i32);
  EXPECT_EQ(buffers[0].second.view().load_int({6, 0}), 0);
  EXPECT_EQ(buffers[0].second.view().load_int({6, 1}), 1);
  EXPECT_EQ(buffers[1].second.view().load_float({3}), 6);
}

void expect_refused(const std::string& what, const std::string& text) {
  expect_error(ErrorKind::value, "[gallery] " + what, [&] { parse_gallery(text); });
}

TEST(GalleryParse, Errors) {
  const std::string head = "[a]\nkind: mask\nabout: x\nreference: y\n";
  const std::string whole = head + "sizes: q_len = 2\nformula: True\n";
  expect_refused("line 1: expected [name] or field: value; got kind: mask", "kind: mask");
  expect_refused("line 2: expected [name] or field: value; got words", "[a]\nwords");
  expect_refused("line 1: an entry begins with its name in [ ]", "[a");
  expect_refused("line 2: there is no field to continue", "[a]\n  more");
  expect_refused("line 2: unknown field 'color'", "[a]\ncolor: red");
  expect_refused("line 2: kind must be mask or score; got both", "[a]\nkind: both");
  expect_refused("line 1: entry 'a' must have one field 'sizes'; got 0", head);
  expect_refused("line 1: entry 'a' must have one field 'kind'; got 2", whole + "kind: mask");
  expect_refused("line 1: entry 'a' must have one field 'formula' or 'function'; got 2",
                 whole + "function: causal()");
  expect_refused("line 7: the name 'a' stands twice", whole + whole);
  expect_refused("line 2: let needs '='; got W", "[a]\nlet: W");
  expect_refused("line 2: a table is name dtype[sizes] = formula; got t = 3", "[a]\ntable: t = 3");
  expect_refused("line 2: a table is name dtype[sizes] = formula; got t f32[3 = 3",
                 "[a]\ntable: t f32[3 = 3");
  for (const char* sizes : {"q_len", "q_len = 0", "q_len = 3x", "rows = 3", "q_len ="})
    expect_refused(std::string("line 2: sizes are q_len = N, kv_len, heads, batch; got ") + sizes,
                   std::string("[a]\nsizes: ") + sizes);
}

}  // namespace
}  // namespace quire::mods
