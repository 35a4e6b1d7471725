// Asserts that a call throws quire::Error of one kind with one exact text. Tests only.
#pragma once
#include <gtest/gtest.h>

#include <string>

#include "quire/error.h"
#include "quire/function_ref.h"

namespace quire::testing {

inline void expect_error(ErrorKind kind, const std::string& text, FunctionRef<void()> call) {
  try {
    call();
    ADD_FAILURE() << "no error; expected: " << text;
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), text);
    EXPECT_EQ(error.kind(), kind) << text;
  }
}

}  // namespace quire::testing
