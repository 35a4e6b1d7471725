// Error carries its text and kind and is a std::runtime_error.
#include "quire/error.h"

#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(Error, CarriesKindAndText) {
  const Error error(ErrorKind::index, "[at] index is out of range; got 3");
  EXPECT_EQ(error.kind(), ErrorKind::index);
  EXPECT_STREQ(error.what(), "[at] index is out of range; got 3");
}

TEST(Error, IsCaughtAsRuntimeError) {
  EXPECT_THROW(throw Error(ErrorKind::value, "[x] y"), std::runtime_error);
}

}  // namespace
}  // namespace quire
