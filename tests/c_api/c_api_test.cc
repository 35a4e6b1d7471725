// The C interface: results are those of the C++ functions, every failure is a status with a text,
// and structs of older and newer versions are told apart.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "quire/flex_attention.h"
#include "quire/jagged.h"
#include "quire/mods.h"
#include "quire/quire_c.h"
#include "tests/c_api/c_structs.h"

namespace quire {
namespace {

using namespace c_api_testing;  // NOLINT

struct CApi : ::testing::Test {
  const Tensor q = numbers({2, 4, 37, 24}, 1), k = numbers({2, 2, 53, 24}, 2),
               v = numbers({2, 2, 53, 8}, 3);
  quire_tensor c_q = c_tensor(q), c_k = c_tensor(k), c_v = c_tensor(v);
  Tensor slopes = Tensor::from<float>({0.5f, 0.25f, 0.125f, 0.0625f}, {4});
  quire_buffers* buffers = nullptr;
  quire_score_mod* score = nullptr;
  quire_mask_mod* causal = nullptr;
  quire_block_mask* mask = nullptr;

  void SetUp() override {
    ASSERT_EQ(quire_buffers_create(&buffers), QUIRE_OK);
    const quire_tensor table = c_tensor(slopes);
    ASSERT_EQ(quire_buffers_add(buffers, "slopes", &table, 0), QUIRE_OK);
    ASSERT_EQ(quire_score_mod_create("score + slopes[h] * (kv_idx - q_idx)", buffers, &score), 0);
    ASSERT_EQ(quire_mask_mod_create("q_idx + 16 >= kv_idx", nullptr, &causal), QUIRE_OK);
    auto options = sized<quire_block_mask_options>();
    options.q_len = 37;
    options.kv_len = 53;
    options.q_block = options.kv_block = 8;
    ASSERT_EQ(quire_block_mask_create(causal, &options, &mask), QUIRE_OK);
  }
  void TearDown() override {
    quire_block_mask_free(mask);
    quire_mask_mod_free(causal);
    quire_score_mod_free(score);
    quire_buffers_free(buffers);
  }
};

TEST_F(CApi, DenseHasTheBitsOfCpp) {
  const ScoreMod alibi = mods::alibi(slopes);
  const MaskMod rule = MaskMod::parse("q_idx + 16 >= kv_idx");
  AuxOutput aux;
  const Tensor wanted = flex_attention(q, k, v,
                                       {.score_mod = alibi,
                                        .block_mask = create_block_mask(rule, 1, 1, 37, 53),
                                        .scale = 0.3,
                                        .enable_gqa = true,
                                        .return_aux = {.lse = true, .max_scores = true},
                                        .aux = &aux});
  Tensor out = Tensor::empty({2, 4, 37, 8}, DType::f32),
         lse = Tensor::empty({2, 4, 37}, DType::f32), most = Tensor::empty({2, 4, 37}, DType::f32);
  const quire_tensor c_out = c_tensor(out), c_lse = c_tensor(lse), c_most = c_tensor(most);
  auto options = sized<quire_flex_attention_options>();
  options.score_mod = score;
  options.block_mask = mask;
  options.scale = 0.3;
  options.has_scale = options.enable_gqa = 1;
  options.lse = &c_lse;
  options.max_scores = &c_most;
  ASSERT_EQ(quire_flex_attention(&c_q, &c_k, &c_v, &options, &c_out), QUIRE_OK)
      << quire_last_error();
  expect_same_bits(out, wanted);
  expect_same_bits(lse, *aux.lse);
  expect_same_bits(most, *aux.max_scores);
}

TEST_F(CApi, WithoutOptionsAndIntoStridedMemory) {
  const Tensor keys = numbers({2, 4, 53, 24}, 4), values = numbers({2, 4, 53, 8}, 5);
  const Tensor wanted = flex_attention(q, keys, values);
  Tensor out({2, 37, 4, 8}, DType::f32);
  const quire_tensor c_keys = c_tensor(keys), c_values = c_tensor(values),
                     c_out = c_tensor(out.view().permute({0, 2, 1, 3}));
  ASSERT_EQ(quire_flex_attention(&c_q, &c_keys, &c_values, nullptr, &c_out), QUIRE_OK);
  expect_same_bits(contiguous(out.view().permute({0, 2, 1, 3})), wanted);
}

TEST_F(CApi, APlaceForTheFirstQuery) {
  const Tensor wanted = flex_attention(
      q, k, v, {.score_mod = mods::alibi(slopes), .enable_gqa = true, .q_begin = {5, 16}});
  Tensor out = Tensor::empty({2, 4, 37, 8}, DType::f32);
  const quire_tensor c_out = c_tensor(out);
  const std::int64_t begin[] = {5, 16};
  auto options = sized<quire_flex_attention_options>();
  options.score_mod = score;
  options.enable_gqa = 1;
  options.q_begin = begin;
  options.q_begin_count = 2;
  ASSERT_EQ(quire_flex_attention(&c_q, &c_k, &c_v, &options, &c_out), QUIRE_OK);
  expect_same_bits(out, wanted);
}

TEST_F(CApi, JaggedHasTheBitsOfCpp) {
  const Tensor values = numbers({60, 4, 24}, 6);
  const Tensor offsets = Tensor::from<std::int32_t>({0, 7, 7, 40, 60}, {5});
  const Tensor lengths = Tensor::from<std::int64_t>({7, 0, 30, 20}, {4});
  const Jagged all{.values = values, .offsets = offsets, .lengths = lengths};
  AuxOutput aux;
  const Tensor wanted = flex_attention(all, all, all,
                                       {.score_mod = mods::alibi(slopes),
                                        .mask_mod = mods::causal(),
                                        .return_aux = {.lse = true},
                                        .aux = &aux});
  Tensor out({60, 4, 24}, DType::f32), lse({60, 4}, DType::f32);
  const quire_tensor c_values = c_tensor(values), c_offsets = c_tensor(offsets),
                     c_lengths = c_tensor(lengths), c_out = c_tensor(out), c_lse = c_tensor(lse);
  auto batch = sized<quire_jagged>();
  batch.values = &c_values;
  batch.offsets = &c_offsets;
  batch.lengths = &c_lengths;
  quire_mask_mod* rule = nullptr;
  ASSERT_EQ(quire_mask_mod_create("q_idx >= kv_idx", nullptr, &rule), QUIRE_OK);
  auto options = sized<quire_jagged_attention_options>();
  options.score_mod = score;
  options.mask_mod = rule;
  options.lse = &c_lse;
  ASSERT_EQ(quire_flex_attention_jagged(&batch, &batch, &batch, &options, &c_out), QUIRE_OK)
      << quire_last_error();
  quire_mask_mod_free(rule);
  expect_same_bits(out, wanted);
  expect_same_bits(lse, *aux.lse);
  batch.order = 2;
  expect_failed(QUIRE_ERROR_VALUE, "[quire_flex_attention_jagged] q.order must be 0 or 1; got 2",
                quire_flex_attention_jagged(&batch, &batch, &batch, nullptr, &c_out));
}

TEST_F(CApi, BlockMasks) {
  std::int64_t shape[4] = {};
  ASSERT_EQ(quire_block_mask_shape(mask, shape), QUIRE_OK);
  EXPECT_EQ((std::vector<std::int64_t>(shape, shape + 4)),
            (std::vector<std::int64_t>{1, 1, 37, 53}));
  const BlockMask same =
      create_block_mask(MaskMod::parse("q_idx + 16 >= kv_idx"), 1, 1, 37, 53, {.block_size = 8});
  double percent = 0;
  ASSERT_EQ(quire_block_mask_sparsity(mask, &percent), QUIRE_OK);
  EXPECT_EQ(percent, same.sparsity());
  std::size_t length = 0;
  ASSERT_EQ(quire_block_mask_to_string(mask, nullptr, 0, &length), QUIRE_OK);
  ASSERT_EQ(length, same.to_string().size());
  std::string text(length + 1, 'x');
  ASSERT_EQ(quire_block_mask_to_string(mask, text.data(), text.size(), nullptr), QUIRE_OK);
  EXPECT_EQ(text, same.to_string() + '\0');
  char little[5] = "....";
  ASSERT_EQ(quire_block_mask_to_string(mask, little, sizeof little, nullptr), QUIRE_OK);
  EXPECT_EQ(std::string(little), same.to_string().substr(0, 4));
}

// Two rows of blocks: block 1, and blocks 0 and 2.
struct KvBlocks {
  KvBlocks() {
    lists.num_blocks = &c_count;
    lists.indices = &c_which;
  }
  KvBlocks(const KvBlocks&) = delete;
  const Tensor count = Tensor::from<std::int32_t>({1, 2}, {1, 1, 2});
  const Tensor which = Tensor::from<std::int32_t>({1, 0, 0, 2}, {1, 1, 2, 2});
  const quire_tensor c_count = c_tensor(count), c_which = c_tensor(which);
  quire_kv_blocks lists = sized<quire_kv_blocks>();
};

TEST_F(CApi, BlocksChosenByData) {
  KvBlocks blocks;
  auto options = sized<quire_block_mask_options>();
  options.q_len = 20;
  options.kv_len = 45;
  options.q_block = options.kv_block = 16;
  quire_block_mask* chosen = nullptr;
  ASSERT_EQ(quire_block_mask_from_kv_blocks(&blocks.lists, &options, &chosen), QUIRE_OK)
      << quire_last_error();
  double percent = 0;
  ASSERT_EQ(quire_block_mask_sparsity(chosen, &percent), QUIRE_OK);
  EXPECT_EQ(percent, BlockMask::from_kv_blocks({blocks.count, blocks.which},
                                               {.block_size = 16, .seq_lengths = std::pair(20, 45)})
                         .sparsity());
  quire_block_mask_free(chosen);
  blocks.lists.full_indices = &blocks.c_which;
  expect_failed(QUIRE_ERROR_VALUE,
                "[quire_block_mask_from_kv_blocks] blocks.full_num_blocks is null",
                quire_block_mask_from_kv_blocks(&blocks.lists, &options, &chosen));
  EXPECT_EQ(chosen, nullptr);
}

TEST_F(CApi, EveryNullIsAnError) {
  quire_score_mod* no_mod = score;
  quire_block_mask* no_mask = mask;
  Tensor out({2, 4, 37, 8}, DType::f32);
  const quire_tensor c_out = c_tensor(out);
  const auto null = [](const std::string& function, const std::string& name, quire_status status) {
    expect_failed(QUIRE_ERROR_VALUE, "[" + function + "] " + name + " is null", status);
  };
  null("quire_flex_attention", "q", quire_flex_attention(nullptr, &c_k, &c_v, nullptr, &c_out));
  null("quire_flex_attention", "v", quire_flex_attention(&c_q, &c_k, nullptr, nullptr, &c_out));
  null("quire_flex_attention", "out", quire_flex_attention(&c_q, &c_k, &c_v, nullptr, nullptr));
  null("quire_score_mod_create", "text", quire_score_mod_create(nullptr, nullptr, &no_mod));
  EXPECT_EQ(no_mod, nullptr);
  null("quire_mask_mod_create", "mod", quire_mask_mod_create("True", nullptr, nullptr));
  null("quire_buffers_add", "tensor", quire_buffers_add(buffers, "x", nullptr, 0));
  null("quire_buffers_add", "name", quire_buffers_add(buffers, nullptr, &c_q, 0));
  null("quire_block_mask_create", "options", quire_block_mask_create(causal, nullptr, &no_mask));
  null("quire_block_mask_sparsity", "percent", quire_block_mask_sparsity(mask, nullptr));
  null("quire_tensor_init", "shape", quire_tensor_init(&c_q, c_q.data, QUIRE_F32, 1, nullptr));
  null("quire_get_num_threads", "threads", quire_get_num_threads(nullptr));
  quire_buffers_free(nullptr);
  quire_score_mod_free(nullptr);
  quire_mask_mod_free(nullptr);
  quire_block_mask_free(nullptr);
}

TEST_F(CApi, ErrorsOfTheLibraryArriveWithTheirKind) {
  Tensor out({2, 4, 37, 8}, DType::f32);
  const quire_tensor c_out = c_tensor(out);
  EXPECT_EQ(quire_flex_attention(&c_q, &c_k, &c_v, nullptr, &c_out), QUIRE_ERROR_VALUE);
  EXPECT_EQ(std::string(quire_last_error()).substr(0, 22), "[quire_flex_attention]");
  quire_score_mod* wrong = score;
  expect_failed(QUIRE_ERROR_VALUE,
                "[parse] unknown name 'scor'; did you mean 'score'?\n  scor + 1\n  ^",
                quire_score_mod_create("scor + 1", nullptr, &wrong));
  EXPECT_EQ(wrong, nullptr);
  quire_tensor odd = c_q;
  odd.dtype = 10;
  expect_failed(QUIRE_ERROR_TYPE, "[quire_flex_attention] q.dtype must be in 0..9; got 10",
                quire_flex_attention(&odd, &c_k, &c_v, nullptr, &c_out));
  odd = c_q;
  odd.rank = 9;
  expect_failed(QUIRE_ERROR_VALUE, "[quire_flex_attention] q.rank must be in 0..8; got 9",
                quire_flex_attention(&odd, &c_k, &c_v, nullptr, &c_out));
  const quire_tensor table = c_tensor(slopes);
  expect_failed(QUIRE_ERROR_VALUE,
                "[quire_buffers_add] there is a buffer of this name already; got 'slopes'",
                quire_buffers_add(buffers, "slopes", &table, 0));
  expect_failed(QUIRE_ERROR_VALUE, "[quire_buffers_add] wants_gradient must be 0 or 1; got 2",
                quire_buffers_add(buffers, "more", &table, 2));
  // A fault while it runs.
  quire_score_mod* outside = nullptr;
  ASSERT_EQ(quire_score_mod_create("score + slopes[kv_idx]", buffers, &outside), QUIRE_OK);
  auto options = sized<quire_flex_attention_options>();
  options.score_mod = outside;
  options.enable_gqa = 1;
  EXPECT_EQ(quire_flex_attention(&c_q, &c_k, &c_v, &options, &c_out), QUIRE_ERROR_INDEX);
  EXPECT_NE(std::string(quire_last_error()).find("slopes"), std::string::npos);
  quire_score_mod_free(outside);
}

TEST_F(CApi, AMistakeInATensorNamesTheTensor) {
  Tensor out({2, 4, 37, 8}, DType::f32);
  const quire_tensor c_out = c_tensor(out);
  const auto refused = [&](const std::string& text, const quire_tensor& odd) {
    expect_failed(QUIRE_ERROR_VALUE, "[quire_flex_attention] k" + text,
                  quire_flex_attention(&c_q, &odd, &c_v, nullptr, &c_out));
  };
  quire_tensor odd = c_k;
  odd.shape[2] = -53;
  refused(": sizes must not be negative; got [2, 2, -53, 24]", odd);
  odd = c_k;
  odd.data = nullptr;
  refused(": data must not be null; got shape [2, 2, 53, 24]", odd);
  odd = c_k;
  odd.data = static_cast<char*>(c_k.data) + 2;
  refused(".data must be aligned for f32, a multiple of 4 bytes", odd);
  std::int64_t shape[2] = {std::int64_t{1} << 40, std::int64_t{1} << 40};
  expect_failed(QUIRE_ERROR_VALUE,
                "[quire_tensor_init] tensor: too many elements; got [1099511627776, 1099511627776]",
                quire_tensor_init(&odd, c_k.data, QUIRE_F32, 2, shape));
}

TEST_F(CApi, NothingThatIsAskedForIsIgnored) {
  Tensor out({2, 4, 37, 8}, DType::f32);
  const quire_tensor c_out = c_tensor(out);
  auto options = sized<quire_flex_attention_options>();
  options.enable_gqa = 1;
  options.scale = 0.5;
  expect_failed(
      QUIRE_ERROR_VALUE,
      "[quire_flex_attention] options.scale counts only with has_scale = 1; got 0.5 and 0",
      quire_flex_attention(&c_q, &c_k, &c_v, &options, &c_out));
  options.scale = 0;
  const std::int64_t begin = 3;
  options.q_begin = &begin;
  expect_failed(QUIRE_ERROR_VALUE,
                "[quire_flex_attention] options.q_begin is given, and options.q_begin_count is 0",
                quire_flex_attention(&c_q, &c_k, &c_v, &options, &c_out));
  for (const std::size_t count : {std::size_t{3}, std::size_t{1} << 61, ~std::size_t{0}}) {
    options.q_begin_count = count;
    expect_failed(
        QUIRE_ERROR_VALUE,
        "[quire_flex_attention] options.q_begin_count must be 1, for all batch entries, or "
        "2, one for each; got " +
            std::to_string(count),
        quire_flex_attention(&c_q, &c_k, &c_v, &options, &c_out));
  }
  const KvBlocks blocks;
  auto sizes = sized<quire_block_mask_options>();
  sizes.q_begin = 7;
  quire_block_mask* chosen = nullptr;
  expect_failed(QUIRE_ERROR_VALUE,
                "[quire_block_mask_from_kv_blocks] batch and heads are those of the lists, and "
                "q_begin is not taken: options must have 0 there",
                quire_block_mask_from_kv_blocks(&blocks.lists, &sizes, &chosen));
}

// Before a plan is made: one for 2^40 keys takes all memory there is.
TEST_F(CApi, SizesThatDoNotFitAreNamedWhateverTheirSize) {
  quire_tensor long_k = c_k, long_v = c_v, long_q = c_q;
  long_k.shape[2] = long_v.shape[2] = long_q.shape[2] = std::int64_t{1} << 40;
  for (quire_tensor* tensor : {&long_k, &long_v, &long_q})
    for (int axis = 0; axis < 3; ++axis) tensor->strides[axis] = 0;
  Tensor out = Tensor::empty({2, 4, 37, 8}, DType::f32),
         wrong = Tensor::empty({2, 4, 36, 8}, DType::f32);
  const quire_tensor c_out = c_tensor(out), c_wrong = c_tensor(wrong);
  auto options = sized<quire_flex_attention_options>();
  options.enable_gqa = 1;
  const auto refused = [&](const quire_tensor& q_given, const quire_tensor& k_given,
                           const quire_tensor& v_given, const quire_tensor& out_given) {
    EXPECT_EQ(quire_flex_attention(&q_given, &k_given, &v_given, &options, &out_given),
              QUIRE_ERROR_VALUE);
    return std::string(quire_last_error());
  };
  EXPECT_TRUE(
      refused(c_q, long_k, c_v, c_out).starts_with("[quire_flex_attention] key and value must"));
  EXPECT_EQ(refused(c_q, long_k, long_v, c_wrong),
            "[quire_flex_attention] out must have shape [2, 4, 37, 8]; got [2, 4, 36, 8]");
  EXPECT_TRUE(
      refused(long_q, c_k, c_v, c_out).starts_with("[quire_flex_attention] out must have shape"));
}

TEST_F(CApi, ANameThatNoTextCouldReadIsRefusedAtOnce) {
  const quire_tensor table = c_tensor(slopes);
  expect_failed(QUIRE_ERROR_VALUE, "[parse] a buffer's name must be an identifier; got 'a b'",
                quire_buffers_add(buffers, "a b", &table, 0));
  expect_failed(QUIRE_ERROR_VALUE,
                "[parse] a buffer may not be called 'score'; the language uses that name",
                quire_buffers_add(buffers, "score", &table, 0));
  quire_score_mod* still = nullptr;
  EXPECT_EQ(quire_score_mod_create("score + slopes[h]", buffers, &still), QUIRE_OK);
  quire_score_mod_free(still);
}

TEST_F(CApi, OutputsMustNotShareMemory) {
  auto options = sized<quire_flex_attention_options>();
  const Tensor same = q.clone();
  const quire_tensor c_same = c_tensor(same);
  expect_failed(QUIRE_ERROR_VALUE, "[quire_flex_attention] out must not share memory with query",
                quire_flex_attention(&c_same, &c_q, &c_q, &options, &c_same));
  expect_same_bits(same, q);
}

TEST_F(CApi, SizesTellVersionsApart) {
  Tensor out({2, 4, 37, 8}, DType::f32);
  const quire_tensor c_out = c_tensor(out);
  struct {
    quire_flex_attention_options known;
    std::int64_t added_later;
  } newer = {};
  newer.known.size = sizeof newer;
  newer.known.enable_gqa = 1;
  // Fields that are not known and not set do not matter.
  EXPECT_EQ(quire_flex_attention(&c_q, &c_k, &c_v, &newer.known, &c_out), QUIRE_OK);
  newer.added_later = 1;
  expect_failed(
      QUIRE_ERROR_NOT_IMPLEMENTED,
      "[quire_flex_attention] options sets fields that this version of the library does not know",
      quire_flex_attention(&c_q, &c_k, &c_v, &newer.known, &c_out));
  for (const std::size_t size :
       {std::size_t{0}, sizeof(quire_flex_attention_options) - 1, ~std::size_t{0}}) {
    newer.known.size = size;
    expect_failed(QUIRE_ERROR_VALUE,
                  "[quire_flex_attention] options.size must be the size of its struct, at least " +
                      std::to_string(sizeof(quire_flex_attention_options)) + "; got " +
                      std::to_string(size),
                  quire_flex_attention(&c_q, &c_k, &c_v, &newer.known, &c_out));
  }
}

TEST_F(CApi, HandlesMayBeFreedBeforeWhatWasMadeFromThem) {
  quire_buffers_free(buffers);
  quire_mask_mod_free(causal);
  buffers = nullptr;
  causal = nullptr;
  Tensor out({2, 4, 37, 8}, DType::f32);
  const quire_tensor c_out = c_tensor(out);
  auto options = sized<quire_flex_attention_options>();
  options.score_mod = score;
  options.block_mask = mask;
  options.enable_gqa = 1;
  EXPECT_EQ(quire_flex_attention(&c_q, &c_k, &c_v, &options, &c_out), QUIRE_OK);
}

TEST_F(CApi, EveryThreadHasItsOwnLastError) {
  quire_mask_mod* wrong = nullptr;
  EXPECT_EQ(quire_mask_mod_create("score > 0", nullptr, &wrong), QUIRE_ERROR_VALUE);
  const std::string here = quire_last_error();
  std::string there = "not asked";
  std::thread([&] { there = quire_last_error(); }).join();
  EXPECT_EQ(there, "");
  EXPECT_EQ(here, quire_last_error());
}

TEST(CApiLibrary, VersionIsaAndThreads) {
  EXPECT_EQ(std::count(quire_version(), quire_version() + std::strlen(quire_version()), '.'), 2);
  EXPECT_NE(quire_isa(), nullptr);
  std::int32_t before = 0, threads = 0;
  ASSERT_EQ(quire_get_num_threads(&before), QUIRE_OK);
  ASSERT_EQ(quire_set_num_threads(3), QUIRE_OK);
  ASSERT_EQ(quire_get_num_threads(&threads), QUIRE_OK);
  EXPECT_EQ(threads, 3);
  EXPECT_EQ(quire_set_num_threads(0), QUIRE_ERROR_VALUE);
  ASSERT_EQ(quire_set_num_threads(before), QUIRE_OK);
}

TEST(CApiLibrary, TensorInitIsRowMajor) {
  float data[24] = {};
  const std::int64_t shape[3] = {2, 3, 4}, broken[1] = {-1};
  quire_tensor tensor;
  ASSERT_EQ(quire_tensor_init(&tensor, data, QUIRE_F32, 3, shape), QUIRE_OK);
  EXPECT_EQ(tensor.size, sizeof tensor);
  EXPECT_EQ((std::vector<std::int64_t>(tensor.strides, tensor.strides + 3)),
            (std::vector<std::int64_t>{12, 4, 1}));
  EXPECT_EQ(quire_tensor_init(&tensor, data, QUIRE_F32, 1, broken), QUIRE_ERROR_VALUE);
  EXPECT_EQ(quire_tensor_init(&tensor, nullptr, QUIRE_F32, 3, shape), QUIRE_ERROR_VALUE);
  EXPECT_EQ(tensor.data, data);  // nothing has changed
}

}  // namespace
}  // namespace quire
