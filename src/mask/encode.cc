// BlockMask::encode and decode: the blocks of a mask as 64-bit words that can be passed by value,
// in a torch.compile graph, an exported program or a file. The rule is passed separately as text.
// Words are not trusted: decode checks every number before it is used. Mask layer.
//
// The first kHeaderWords words are a Header. In a dense code, one row of blocks follows the other,
// two bits per block (its BlockKind), each row starting at a new word; planes that are not stored
// are zeros. In a code of runs there follow: the numbers of stored planes, rows and runs; the plane
// of each (batch, head); the row of each plane and row of blocks; where the runs of each stored row
// end; the runs.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <span>
#include <vector>

#include "mask/block_mask_data.h"
#include "mask/mask_words.h"
#include "mask/size_limits.h"
#include "quire/block_mask.h"
#include "quire/error.h"
#include "quire/mods.h"
#include "runtime/ceil_div.h"
#include "runtime/check_size.h"
#include "runtime/fail.h"
#include "runtime/float_env.h"
#include "runtime/memory.h"

namespace quire {

using namespace mask;

std::int64_t mask::words_checksum(std::span<const std::int64_t> words) {
  constexpr std::size_t kFirstSummed = 2;
  std::uint64_t sum = words.size();
  for (const std::int64_t word : words.subspan(kFirstSummed)) {
    sum = (sum ^ static_cast<std::uint64_t>(word)) * 0x9e3779b97f4a7c15u;
    sum ^= sum >> 32;
  }
  return static_cast<std::int64_t>(sum);
}

namespace {

constexpr const char* kEncode = "BlockMask::encode";
constexpr const char* kDecode = "BlockMask::decode";
constexpr std::int64_t kMagic = 0x5175697265424b01;  // "QuireBK" and the version
constexpr std::int64_t kBlocksPerWord = 32;
// Rows of a mask without keys take no words, so the header is believed up to this many.
constexpr std::int64_t kMostRowsWithoutWords = std::int64_t{1} << 24;
constexpr std::int64_t kMostShortDenseWords = (std::int64_t{256} << 10) / sizeof(std::int64_t);

constexpr std::int64_t kFormDense = 0, kFormRuns = 1;
constexpr std::int64_t kSeparateFull = 1, kHasQBlocks = 2;  // flags

struct Header {
  std::int64_t magic = kMagic;
  std::int64_t checksum = 0;  // of all words after it
  std::int64_t form = kFormDense;
  std::int64_t rank = 4;
  std::int64_t batch = 1, heads = 1;
  std::int64_t q_len = 0, kv_len = 0;
  std::int64_t q_begin = 0;
  std::int64_t q_size = 0, kv_size = 0;
  std::int64_t q_blocks = 0, kv_blocks = 0;
  std::int64_t flags = 0;
  std::int64_t stored_batches = 1, stored_heads = 1;
};
constexpr std::size_t kHeaderWords = sizeof(Header) / sizeof(std::int64_t);
using HeaderWords = std::array<std::int64_t, kHeaderWords>;
Header header_of(const BlockMaskData& data, std::int64_t form) {
  return {.form = form,
          .rank = static_cast<std::int64_t>(data.shape.rank()),
          .batch = data.batch,
          .heads = data.heads,
          .q_len = data.q_len,
          .kv_len = data.kv_len,
          .q_begin = data.q_begin,
          .q_size = data.block_size.q,
          .kv_size = data.block_size.kv,
          .q_blocks = data.q_blocks,
          .kv_blocks = data.kv_blocks,
          .flags = (data.separate_full_blocks ? kSeparateFull : 0) |
                   (data.has_q_blocks ? kHasQBlocks : 0),
          .stored_batches = data.rows->batches(),
          .stored_heads = data.rows->heads()};
}

// ---- writing

void set_bits(std::int64_t* row, const BlockRun& run) {
  // Repeats a two-bit number over a word.
  const std::uint64_t pattern = 0x5555555555555555u * static_cast<std::uint64_t>(run.kind);
  for (std::int64_t at = run.begin; at < run.end();) {
    const std::int64_t first = at % kBlocksPerWord;
    const std::int64_t count = std::min(kBlocksPerWord - first, run.end() - at);
    const std::uint64_t taken = count == kBlocksPerWord
                                    ? ~std::uint64_t{0}
                                    : ((std::uint64_t{1} << (2 * count)) - 1) << (2 * first);
    row[at / kBlocksPerWord] |= static_cast<std::int64_t>(pattern & taken);
    at += count;
  }
}

void write_dense(const BlockRows& rows, std::int64_t kv_blocks, std::int64_t* out) {
  const std::int64_t width = ceil_div(kv_blocks, kBlocksPerWord);
  for (std::int64_t b = 0; b < rows.batches(); ++b) {
    for (std::int64_t h = 0; h < rows.heads(); ++h) {
      const std::int64_t plane = rows.plane(b, h);
      for (std::int64_t row = 0; row < rows.rows_per_plane(); ++row, out += width)
        for (const BlockRun& run : rows.row(plane, row)) set_bits(out, run);
    }
  }
}

std::int64_t runs_words(const BlockRows& rows) {
  return 3 + rows.batches() * rows.heads() + rows.planes() * rows.rows_per_plane() +
         rows.stored_rows() + rows.stored_runs();
}

std::int64_t pack(const BlockRun& run) {
  return static_cast<std::int64_t>(std::uint64_t{run.begin} << 32 | std::uint64_t{run.length} << 2 |
                                   static_cast<std::uint64_t>(run.kind));
}

void write_runs(const BlockRows& rows, std::int64_t* out) {
  const std::int64_t planes = rows.planes();
  *out++ = planes;
  *out++ = rows.stored_rows();
  *out++ = rows.stored_runs();
  for (std::int64_t b = 0; b < rows.batches(); ++b)
    for (std::int64_t h = 0; h < rows.heads(); ++h) *out++ = rows.plane(b, h);
  for (std::int64_t plane = 0; plane < planes; ++plane)
    for (std::int64_t row = 0; row < rows.rows_per_plane(); ++row) *out++ = rows.row_id(plane, row);
  std::int64_t end = 0;
  for (std::int64_t id = 0; id < rows.stored_rows(); ++id)
    *out++ = end += std::ssize(rows.stored_row(static_cast<std::uint32_t>(id)));
  for (std::int64_t id = 0; id < rows.stored_rows(); ++id)
    for (const BlockRun& run : rows.stored_row(static_cast<std::uint32_t>(id))) *out++ = pack(run);
}

// ---- reading

[[noreturn]] void fail_damaged(std::string_view what) {
  fail(ErrorKind::value, kDecode, "the words are not those of a block mask, or damaged: {}", what);
}

void require(bool holds, std::string_view what) {
  if (!holds) fail_damaged(what);
}

// Takes words from the front.
struct Reader {
  std::span<const std::int64_t> words;

  std::span<const std::int64_t> take(std::int64_t count) {
    require(count >= 0 && count <= std::ssize(words), "there are too few words");
    const std::span<const std::int64_t> taken = words.first(count);
    words = words.subspan(count);
    return taken;
  }
  std::int64_t take_number(std::int64_t least, std::int64_t most, std::string_view what) {
    const std::int64_t number = take(1).front();
    require(number >= least && number <= most, what);
    return number;
  }
};

void check_header(const Header& header) {
  const auto in = [](std::int64_t value, std::int64_t least, std::int64_t most) {
    return value >= least && value <= most;
  };
  require(header.form == kFormDense || header.form == kFormRuns, "form");
  require(in(header.rank, 2, 4), "rank");
  require(in(header.batch, 0, header.rank > 3 ? kMostPosition : 1), "batch");
  require(in(header.heads, 0, header.rank > 2 ? kMostPosition : 1), "heads");
  require(header.rank > 3 || header.batch == 1, "batch");
  require(header.rank > 2 || header.heads == 1, "heads");
  require(in(header.q_len, 0, kMostPosition), "q_len");
  require(in(header.kv_len, 0, kMostPosition), "kv_len");
  require(in(header.q_begin, 0, 2 * kMostPosition), "q_begin");  // rows() may have added to it
  require(in(header.q_size, 1, kMostPosition), "block_size.q");
  require(in(header.kv_size, 1, kMostPosition), "block_size.kv");
  require(in(header.q_blocks, 0, kMostBlocks), "query blocks");
  require(in(header.kv_blocks, ceil_div(header.kv_len, header.kv_size), kMostBlocks), "key blocks");
  require(in(header.flags, 0, kSeparateFull | kHasQBlocks), "flags");
  require(header.stored_batches == 1 || header.stored_batches == header.batch, "stored batches");
  require(header.stored_heads == 1 || header.stored_heads == header.heads, "stored heads");
}

void read_dense_row(std::span<const std::int64_t> words, std::int64_t kv_blocks, RunList& runs) {
  for (std::int64_t begin = 0; begin < kv_blocks; begin += kBlocksPerWord) {
    const auto bits = static_cast<std::uint64_t>(words[begin / 32]);
    const std::int64_t end = std::min(begin + kBlocksPerWord, kv_blocks);
    if (bits == 0x5555555555555555u * (bits & 3)) {
      append_run(runs, begin, end, static_cast<BlockKind>(bits & 3));
      continue;
    }
    for (std::int64_t at = begin; at < end; ++at)
      append_run(runs, at, at + 1, static_cast<BlockKind>(bits >> (2 * (at - begin)) & 3));
  }
}

BlockRows read_dense(const Header& header, Reader reader) {
  const std::int64_t width = ceil_div(header.kv_blocks, kBlocksPerWord);
  const std::int64_t planes = saturating_product(header.stored_batches, header.stored_heads);
  require(std::ssize(reader.words) + std::int64_t{kHeaderWords} ==
              BlockMask::dense_words(header.batch, header.heads, header.q_blocks, header.kv_blocks),
          "there are too many or too few words");
  // Planes without blocks take no words, however many the header claims.
  const bool is_empty = width == 0 || header.q_blocks == 0;
  require(width > 0 || header.q_blocks <= kMostRowsWithoutWords, "rows without keys");
  require_memory(kDecode, "the rows", saturating_product(header.q_blocks, sizeof(std::uint32_t)));
  BlockRowsBuilder builder(is_empty ? 1 : header.stored_batches, is_empty ? 1 : header.stored_heads,
                           header.q_blocks);
  RunList runs;
  for (std::int64_t row = 0; row < (is_empty ? 1 : planes) * header.q_blocks; ++row) {
    runs.clear();
    read_dense_row(reader.take(width), header.kv_blocks, runs);
    builder.add_row(runs);
  }
  return builder.finish();
}

BlockRun unpack(std::int64_t word, std::int64_t least, std::int64_t kv_blocks) {
  const auto bits = static_cast<std::uint64_t>(word);
  BlockRun run;
  run.begin = static_cast<std::uint32_t>(bits >> 32);
  run.length = static_cast<std::uint32_t>(bits >> 2) & 0x3fffffffu;
  run.kind = static_cast<BlockKind>(bits & 3);
  require(run.begin >= least && run.length > 0 && run.end() <= kv_blocks &&
              run.kind != BlockKind::kEmpty,
          "a run of blocks");
  return run;
}

// The runs of every stored row, one row after the other; `ends` says where each ends.
RunList read_stored_runs(std::span<const std::int64_t> ends, std::span<const std::int64_t> packed,
                         std::int64_t kv_blocks) {
  RunList runs;
  runs.reserve(packed.size());
  std::int64_t begin = 0;
  for (const std::int64_t end : ends) {
    require(end >= begin && end <= std::ssize(packed), "the end of a row");
    std::int64_t least = 0;
    for (; begin < end; ++begin) {
      runs.push_back(unpack(packed[begin], least, kv_blocks));
      least = runs.back().end();
    }
  }
  require(begin == std::ssize(packed), "runs that belong to no row");
  return runs;
}

BlockRows read_runs(const Header& header, Reader reader) {
  const std::int64_t most = std::ssize(reader.words);
  const std::int64_t planes = reader.take_number(0, most + 1, "planes");
  const std::int64_t stored_rows = reader.take_number(0, most, "stored rows");
  const std::int64_t stored_runs = reader.take_number(0, most, "stored runs");
  const auto plane_of = reader.take(saturating_product(header.stored_batches, header.stored_heads));
  const auto row_of = reader.take(saturating_product(planes, header.q_blocks));
  const auto ends = reader.take(stored_rows);
  const RunList runs = read_stored_runs(ends, reader.take(stored_runs), header.kv_blocks);
  require(reader.words.empty(), "there are too many words");

  BlockRowsBuilder builder(header.stored_batches, header.stored_heads, header.q_blocks);
  for (const std::int64_t plane : plane_of) {
    require(plane >= 0 && plane < planes, "the number of a plane");
    for (std::int64_t row = 0; row < header.q_blocks; ++row) {
      const std::int64_t id = row_of[plane * header.q_blocks + row];
      require(id >= 0 && id < stored_rows, "the number of a row");
      const std::int64_t begin = id == 0 ? 0 : ends[id - 1];
      const std::int64_t end = ends[id];
      builder.add_row(std::span(runs).subspan(begin, end - begin));
    }
  }
  return builder.finish();
}

BlockMaskData data_of(const Header& header) {
  BlockMaskData data;
  if (header.rank > 3) data.shape.push_back(header.batch);
  if (header.rank > 2) data.shape.push_back(header.heads);
  data.shape.push_back(header.q_len);
  data.shape.push_back(header.kv_len);
  data.batch = header.batch;
  data.heads = header.heads;
  data.q_len = header.q_len;
  data.kv_len = header.kv_len;
  data.q_begin = header.q_begin;
  data.block_size = {header.q_size, header.kv_size};
  data.q_blocks = header.q_blocks;
  data.kv_blocks = header.kv_blocks;
  data.separate_full_blocks = (header.flags & kSeparateFull) != 0;
  data.has_q_blocks = (header.flags & kHasQBlocks) != 0;
  data.chosen_by_data = true;  // the words do not include the rule that chose them
  data.mask_mod = noop_mask();
  return data;
}

}  // namespace

std::int64_t BlockMask::dense_words(std::int64_t batch, std::int64_t heads, std::int64_t q_blocks,
                                    std::int64_t kv_blocks) {
  const std::int64_t rows = saturating_product(saturating_product(batch, heads), q_blocks);
  const std::int64_t body = saturating_product(rows, ceil_div(kv_blocks, kBlocksPerWord));
  return std::min(body, INT64_MAX - std::int64_t{kHeaderWords}) + std::int64_t{kHeaderWords};
}

Tensor BlockMask::encode(BlockCode code) const {
  const BlockMaskData& data = *data_;
  const BlockRows& rows = *data.rows;
  std::int64_t words = dense_words(data.batch, data.heads, data.q_blocks, data.kv_blocks);
  const std::int64_t with_runs = runs_words(rows) + std::int64_t{kHeaderWords};
  const bool is_dense =
      code == BlockCode::kDense ||
      (code == BlockCode::kShort && (words <= kMostShortDenseWords || words <= with_runs));
  if (!is_dense) words = with_runs;
  require_memory(kEncode, "the words", saturating_product(words, sizeof(std::int64_t)));
  Tensor result({words}, DType::i64);
  auto* out = static_cast<std::int64_t*>(result.data());
  const auto header =
      std::bit_cast<HeaderWords>(header_of(data, is_dense ? kFormDense : kFormRuns));
  std::ranges::copy(header, out);
  if (is_dense)
    write_dense(rows, data.kv_blocks, out + kHeaderWords);
  else
    write_runs(rows, out + kHeaderWords);
  out[1] = words_checksum({out, static_cast<std::size_t>(words)});
  return result;
}

BlockMask BlockMask::decode(const ConstTensorView& words) {
  const FloatEnv float_env;
  if (words.dtype() != DType::i64 || words.shape().rank() != 1)
    fail(ErrorKind::type, kDecode, "words must be i64 with one axis; got {} {}",
         dtype_name(words.dtype()), quire::to_string(words.shape()));
  const Tensor copy = contiguous(words);
  const std::span<const std::int64_t> all(static_cast<const std::int64_t*>(copy.data()),
                                          copy.numel());
  require(all.size() >= kHeaderWords, "there are too few words");
  HeaderWords first;
  std::ranges::copy(all.first(kHeaderWords), first.begin());
  const auto header = std::bit_cast<Header>(first);
  require(header.magic == kMagic, "they begin with another number, or are of another version");
  require(header.checksum == words_checksum(all), "checksum");
  check_header(header);
  auto data = std::make_shared<BlockMaskData>(data_of(header));
  const Reader body{all.subspan(kHeaderWords)};
  data->rows = std::make_shared<const BlockRows>(
      header.form == kFormDense ? read_dense(header, body) : read_runs(header, body));
  return BlockMask(std::move(data));
}

}  // namespace quire
