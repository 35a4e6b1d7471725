// .npy files in memory and on disk: every dtype there and back, both orders of axes and of bytes,
// all versions of the format, and a text for everything that is wrong. That NumPy agrees is tested
// in tests/cli/test_attend.py.
#include "cli/npy.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "cli/npy_header.h"
#include "tests/support/expect_error.h"

namespace quire {
namespace {

using testing::expect_error;

std::string file_of(const std::string& dictionary, const std::string& elements, int version = 1) {
  const std::size_t length = dictionary.size();
  std::string text = "\x93NUMPY";
  text += static_cast<char>(version);
  text += '\0';
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i)
    text += static_cast<char>(length >> (8 * i) & 255);
  return text + dictionary + elements;
}

std::string dictionary(const std::string& descr, const std::string& shape,
                       const std::string& fortran = "False") {
  return fmt::format("{{'descr': '{}', 'fortran_order': {}, 'shape': {}, }}", descr, fortran,
                     shape);
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

Tensor parse(const std::string& file) { return parse_npy(file, "a.npy"); }

void expect_refused(const std::string& what, const std::string& file,
                    ErrorKind kind = ErrorKind::value) {
  expect_error(kind, "[read_npy] 'a.npy' " + what, [&] { parse(file); });
}

std::string temporary(const std::string& name) {
  return (std::filesystem::temp_directory_path() / fmt::format("quire-npy-{}-{}", getpid(), name))
      .string();
}

void write_file(const std::string& path, const ConstTensorView& values) {
  std::ofstream file(path, std::ios::binary);
  write_npy(file, values);
}

TEST(Npy, EveryDtypeGoesThereAndBack) {
  const std::string path = temporary("every.npy");
  const Tensor numbers = Tensor::from<std::int32_t>({0, 1, 2, 3, 100, 127}, {2, 3});
  for (int i = 0; i < kDTypeCount; ++i) {
    const Tensor values = numbers.to(static_cast<DType>(i));
    write_file(path, values);
    const Tensor read = read_npy(path);
    ASSERT_EQ(read.dtype(), values.dtype());
    ASSERT_EQ(read.shape(), values.shape());
    EXPECT_EQ(0, std::memcmp(read.data(), values.data(), 6 * dtype_size(values.dtype())));
  }
  // A view that is not row-major is written as one that is.
  write_file(path, numbers.view().transpose(0, 1));
  EXPECT_EQ(read_npy(path).at<std::int32_t>({2, 1}), 127);
  std::filesystem::remove(path);
}

TEST(Npy, ScalarsAndEmptyArrays) {
  EXPECT_EQ(parse(file_of(dictionary("<f4", "()"), bytes_of<float>({2.5f}))).at<float>({}), 2.5f);
  const Tensor empty = parse(file_of(dictionary("<i8", "(3, 0, 5)"), ""));
  EXPECT_EQ(empty.shape(), (Shape{3, 0, 5}));
  EXPECT_EQ(parse(file_of(dictionary("<f8", "(0,)", "True"), "")).shape(), Shape{0});
}

TEST(Npy, TheHeaderIsPaddedAsNumPyDoes) {
  for (const Shape& shape : {Shape{}, Shape{7}, Shape{1, 2, 3, 4, 5, 6, 7, 8}}) {
    const std::string header = npy_header(DType::f32, shape);
    EXPECT_EQ(header.size() % 64, 0u);
    EXPECT_EQ(header.back(), '\n');
    EXPECT_EQ(parse_npy_header(header, "a.npy").shape, shape);
    EXPECT_EQ(parse_npy_header(header, "a.npy").data_begin, header.size());
  }
  EXPECT_NE(npy_header(DType::bf16, {7})
                .find("{'descr': '<V2', 'fortran_order': False, "
                      "'shape': (7,), }"),
            std::string::npos);
  EXPECT_NE(npy_header(DType::boolean, {7}).find("'|b1'"), std::string::npos);
}

TEST(Npy, FortranOrderBecomesRowMajor) {
  // Columns one behind the other: element (i, j, k) is 100 i + 10 j + k.
  std::vector<std::int16_t> stored;
  for (int k = 0; k < 4; ++k)
    for (int j = 0; j < 3; ++j)
      for (int i = 0; i < 2; ++i) stored.push_back(static_cast<std::int16_t>(100 * i + 10 * j + k));
  const Tensor read = parse(file_of(dictionary("<i2", "(2, 3, 4)", "True"), bytes_of(stored)));
  ASSERT_EQ(read.shape(), (Shape{2, 3, 4}));
  for (std::int64_t i = 0; i < 2; ++i)
    for (std::int64_t j = 0; j < 3; ++j)
      for (std::int64_t k = 0; k < 4; ++k)
        EXPECT_EQ(read.at<std::int16_t>({i, j, k}), 100 * i + 10 * j + k);
}

TEST(Npy, BytesOfEitherOrder) {
  EXPECT_EQ(parse(file_of(dictionary(">i4", "(1,)"), {0, 0, 1, 2})).at<std::int32_t>({0}), 258);
  EXPECT_EQ(parse(file_of(dictionary(">f4", "(1,)"), {0x40, 0x20, 0, 0})).at<float>({0}), 2.5f);
  EXPECT_EQ(parse(file_of(dictionary(">u2", "(1,)"), {1, 2})).at<std::int32_t>({0}), 258);
  EXPECT_EQ(parse(file_of(dictionary("=i2", "(1,)"), {2, 1})).at<std::int16_t>({0}), 258);
}

TEST(Npy, UnsignedIntegersAreWidened) {
  const Tensor u16 = parse(file_of(dictionary("<u2", "(2,)"), bytes_of<std::uint16_t>({7, 65535})));
  EXPECT_EQ(u16.dtype(), DType::i32);
  EXPECT_EQ(u16.at<std::int32_t>({1}), 65535);
  const Tensor u32 = parse(file_of(dictionary("<u4", "(1,)"), bytes_of<std::uint32_t>({~0u})));
  EXPECT_EQ(u32.at<std::int64_t>({0}), 4294967295);
  const Tensor u64 =
      parse(file_of(dictionary("<u8", "(1,)"), bytes_of<std::uint64_t>({INT64_MAX})));
  EXPECT_EQ(u64.at<std::int64_t>({0}), INT64_MAX);
  expect_refused("holds 9223372036854775808, which does not fit into i64",
                 file_of(dictionary("<u8", "(1,)"), bytes_of<std::uint64_t>({1ull << 63})));
}

TEST(Npy, ABoolIsZeroOrOne) {
  const Tensor read = parse(file_of(dictionary("|b1", "(3,)"), std::string("\0\x01\xff", 3)));
  const auto* bytes = static_cast<const unsigned char*>(read.data());
  EXPECT_EQ((std::vector<int>{bytes[0], bytes[1], bytes[2]}), (std::vector<int>{0, 1, 1}));
}

TEST(Npy, AllVersionsAndSpellings) {
  for (const int version : {1, 2, 3}) {
    const std::string file = file_of(dictionary("|u1", "(2,)"), "ab", version);
    EXPECT_EQ(parse(file).at<std::uint8_t>({1}), 'b');
  }
  const Tensor read =
      parse(file_of("{\"shape\":(1,2),\n\t'fortran_order':False, 'descr' : \"|u1\"}  \n", "ab"));
  EXPECT_EQ(read.shape(), (Shape{1, 2}));
}

TEST(Npy, WhatIsNoHeader) {
  expect_refused("is no .npy file: it does not begin with \\x93NUMPY", "");
  expect_refused("is no .npy file: it does not begin with \\x93NUMPY", "PK\x03\x04");
  const std::string good = file_of(dictionary("|u1", "(2,)"), "ab");
  for (std::size_t length = 6; length < good.size() - 2; ++length)
    expect_refused("ends inside its header", good.substr(0, length));
  expect_refused("has format version 4.0; versions 1.0, 2.0 and 3.0 are read",
                 file_of(dictionary("|u1", "(2,)"), "ab", 4));
  expect_refused("has a header of 4294967295 bytes; more than 65536 are refused",
                 std::string("\x93NUMPY\x02\0\xff\xff\xff\xff", 12));
}

TEST(Npy, ABrokenDictionary) {
  const auto broken = [](const std::string& what, const std::string& text) {
    expect_refused("has a broken header: " + what, file_of(text, ""));
  };
  broken("expected '{' (byte 0 of the dictionary)", "");
  broken("expected a text (byte 1 of the dictionary)", "{");
  broken("a text does not end (byte 1 of the dictionary)", "{'descr");
  broken("unknown key 'x?' (byte 5 of the dictionary)", "{'x\n': 1}");
  broken("key 'shape' is missing (byte 41 of the dictionary)",
         "{'descr': '<f4', 'fortran_order': False,}");
  broken("key 'shape' stands twice (byte 23 of the dictionary)", "{'shape': (1,), 'shape': (2,)}");
  broken("expected True or False (byte 18 of the dictionary)", "{'fortran_order': 0}");
  broken("expected a size of at least 0 (byte 11 of the dictionary)", "{'shape': (-1,)}");
  broken("expected a size of at least 0 (byte 11 of the dictionary)", "{'shape': (x,)}");
  broken("a size is too large (byte 11 of the dictionary)", "{'shape': (9223372036854775808,)}");
  broken("expected ',': a tuple of one number is (n,) (byte 12 of the dictionary)",
         "{'shape': (1)}");
  broken("something follows the '}' (byte 57 of the dictionary)",
         "{'descr': '<f4', 'fortran_order': False, 'shape': (1,), };");
}

TEST(Npy, TypesAndShapesThatNoTensorHas) {
  const std::string known = "; there are f2, f4, f8, V2 (bf16), i1 to i8, u1 to u8 and b1";
  for (const char* descr : {"<c8", "|O", "<U3", "<M8[ns]", "|V4", "<f16", "f4", ""})
    expect_refused(fmt::format("has elements of type '{}'{}", descr, known),
                   file_of(dictionary(descr, "(0,)"), ""), ErrorKind::type);
  expect_refused("has records of several fields; a tensor has one dtype",
                 file_of("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (0,)}", ""),
                 ErrorKind::type);
  expect_refused("has more than 8 axes, the most a tensor has",
                 file_of(dictionary("|u1", "(1, 1, 1, 1, 1, 1, 1, 1, 1)"), "a"));
}

TEST(Npy, TheBytesMustBeAsManyAsTheShapeSays) {
  expect_refused("has shape [2, 2], 4 bytes an element, and 15 bytes of elements",
                 file_of(dictionary("<f4", "(2, 2)"), std::string(15, 'a')));
  expect_refused("has shape [2, 2], 4 bytes an element, and 17 bytes of elements",
                 file_of(dictionary("<f4", "(2, 2)"), std::string(17, 'a')));
  // Products that overflow, in elements and in bytes; nothing is allocated for them.
  expect_refused("has shape [4294967296, 4294967296], which is too large",
                 file_of(dictionary("<f4", "(4294967296, 4294967296)"), "abcd"));
  expect_refused("has shape [4611686018427387904], 8 bytes an element, and 0 bytes of elements",
                 file_of(dictionary("<f8", "(4611686018427387904,)"), ""));
  expect_refused("has shape [1099511627776], 8 bytes an element, and 8 bytes of elements",
                 file_of(dictionary("<f8", "(1099511627776,)"), "abcdefgh"));
}

TEST(Npy, FilesThatCannotBeRead) {
  const std::string missing = temporary("no/such.npy"),
                    folder = std::filesystem::temp_directory_path().string();
  expect_error(ErrorKind::runtime,
               "[read_npy] cannot read '" + missing + "': No such file or directory",
               [&] { read_npy(missing); });
  expect_error(ErrorKind::runtime, "[read_npy] cannot read '" + folder + "': Is a directory",
               [&] { read_npy(folder); });
}

// A pipe that goes on for ever is not read for ever, and one that promises much gets no memory for
// it before it comes.
TEST(Npy, NoMoreIsReadThanTheHeaderPromises) {
  expect_error(ErrorKind::value,
               "[read_npy] '/dev/zero' is no .npy file: it does not begin with \\x93NUMPY",
               [] { read_npy("/dev/zero"); });
  EXPECT_THROW(read_npy("/dev/null"), Error);
  const std::string path = temporary("pipe");
  const auto from_pipe = [&](const std::string& begin, bool goes_on) {
    std::filesystem::remove(path);
    ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
    std::jthread writer([&] {
      std::signal(SIGPIPE, SIG_IGN);
      std::ofstream file(path, std::ios::binary);
      file << begin << std::flush;
      const std::string more(65536, 'x');
      while (goes_on && file) file << more << std::flush;
    });
    const Tensor read = read_npy(path);
    EXPECT_EQ(read.at<float>({1}), 2);
  };
  const std::string two = file_of(dictionary("<f4", "(2,)"), bytes_of<float>({1, 2}));
  from_pipe(two, false);
  expect_error(
      ErrorKind::value,
      "[read_npy] '" + path + "' goes on after the 8 bytes of elements that its shape [2] has",
      [&] { from_pipe(two, true); });
  const std::string large = file_of(dictionary("<f4", "(1099511627776, 1048576)"), "");
  EXPECT_THROW(from_pipe(large, true), Error);
  const std::string missing = file_of(dictionary("<f4", "(3,)"), bytes_of<float>({1, 2}));
  expect_error(
      ErrorKind::value,
      "[read_npy] '" + path + "' has shape [3], 4 bytes an element, and 8 bytes of elements",
      [&] { from_pipe(missing, false); });
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace quire
