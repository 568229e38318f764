// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/text_file.h"

#include <gtest/gtest.h>

#include <string>

#include "lockstep/base/error.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"

namespace lockstep::base::text_file_test {
namespace {

using test::fault_of;

TEST(TextFile, HasWhatWasWrittenLast) {
  const test::ScratchDirectory scratch;
  const std::string file = scratch.path() / "file";
  for (const std::string& text :
       {std::string(100'000, 'x'), std::string("a\0\r\n", 4), std::string()}) {
    write_file(file, text);
    EXPECT_EQ(read_file(file), text);
  }
}

TEST(TextFile, IsNamedIfItCannotBeReadOrWritten) {
  const test::ScratchDirectory scratch;
  const std::string absent = scratch.path() / "absent";
  std::string text;
  EXPECT_EQ(fault_of([&] { read_file(absent); }, &text), Fault::system);
  EXPECT_NE(text.find(absent + ": No such file or directory"), text.npos) << text;
  EXPECT_EQ(fault_of([&] { read_file(scratch.path()); }, &text), Fault::system);
  EXPECT_NE(text.find("Is a directory"), text.npos) << text;
  EXPECT_EQ(fault_of([&] { write_file(scratch.path(), "a"); }, &text), Fault::system);
  EXPECT_NE(text.find("Is a directory"), text.npos) << text;
  EXPECT_EQ(fault_of([&] { write_file("/dev/full", "a"); }, &text), Fault::system);
  EXPECT_NE(text.find("/dev/full: No space left on device"), text.npos) << text;
}

}  // namespace
}  // namespace lockstep::base::text_file_test
