// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/text_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/output_file.h"
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

struct Refused {
  const char* action;  // Begins the message.
  std::function<void(const std::string& folder)> act;
};

// `folder` exists; `folder`/no does not.
const Refused refusals[] = {
    {"reading ", [](const std::string& folder) { read_file(folder + "/no"); }},
    {"writing ", [](const std::string& folder) { write_file(folder + "/no/file", "a"); }},
    {"making ", [](const std::string& folder) { OutputFile(folder + "/no/file"); }},
    {"making ", [](const std::string& folder) { AtomicFile(folder + "/no/file", 0); }},
    {"syncing folder ", [](const std::string& folder) { sync_directory(folder + "/no"); }},
    {"following link ",
     [](const std::string& folder) {
       std::filesystem::create_symlink("loop", folder + "/loop");
       AtomicFile(folder + "/loop", 0);
     }},
};

TEST(SystemErrors, NameWhatWasDoneToWhichFile) {
  const test::ScratchDirectory scratch;
  const std::string folder = scratch.path();
  for (const Refused& refused : refusals) {
    std::string text;
    EXPECT_EQ(fault_of([&] { refused.act(folder); }, &text), Fault::system) << refused.action;
    EXPECT_TRUE(text.starts_with("system: " + (refused.action + folder))) << text;
  }
}

}  // namespace
}  // namespace lockstep::base::text_file_test
