// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/shards/shard_names.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "lockstep/base/error.h"
#include "lockstep/toolkit/datasets/shards/folder_samples.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"

namespace lockstep::datasets::shard_names_test {
namespace {

using Names = std::vector<std::string>;
using test::fault_of;

TEST(ShardNames, AreWrittenOutFromBraces) {
  EXPECT_EQ(expand_braces("a.tar"), (Names{"a.tar"}));
  EXPECT_EQ(expand_braces("a-{008..011}.tar"),
            (Names{"a-008.tar", "a-009.tar", "a-010.tar", "a-011.tar"}));
  EXPECT_EQ(expand_braces("{9..11}"), (Names{"9", "10", "11"}));
  EXPECT_EQ(expand_braces("{0..0}"), (Names{"0"}));
  EXPECT_EQ(expand_braces("{a,b}/{0..1}"), (Names{"a/0", "a/1", "b/0", "b/1"}));
  EXPECT_EQ(expand_braces("x{a,{1..2},}y"), (Names{"xay", "x1y", "x2y", "xy"}));
}

TEST(ShardNames, AreRefusedWithBracesThatDoNotFit) {
  for (const char* pattern :
       {"{", "}", "a{b", "a}b", "{a,{b}", "{3..1}", "{0..99999999}", "{0..9999}{0..9999}"})
    EXPECT_EQ(fault_of([&] { expand_braces(pattern); }), Fault::misuse) << pattern;
}

TEST(ShardNames, AreSortedWithinAFolder) {
  const test::ScratchDirectory folder;
  for (const char* name : {"b.tar", "a.tar", "a.tar.index", "{1}.tar", "notes.txt"})
    std::ofstream(folder.path() / name) << "x";
  const std::string path = folder.path();
  const Names all{path + "/a.tar", path + "/b.tar", path + "/{1}.tar"};
  EXPECT_EQ(list_local_shards({path}), all);
  EXPECT_EQ(list_local_shards({path + "/{1}.tar", path + "/{a,b}.tar"}),
            (Names{all[2], all[0], all[1]}));
  std::string text;
  EXPECT_EQ(fault_of([&] { list_local_shards({path, path + "/a.tar"}); }, &text), Fault::misuse);
  EXPECT_NE(text.find("listed twice"), text.npos) << text;
  std::filesystem::create_directory(folder.path() / "empty");
  EXPECT_EQ(fault_of([&] { list_local_shards({path + "/empty"}); }), Fault::misuse);
  EXPECT_EQ(fault_of([&] { list_local_shards({}); }), Fault::misuse);
}

TEST(ShardNames, MayIncludeCompressedFilesButNoDuplicates) {
  const test::ScratchDirectory folder;
  for (const char* name : {"a.tar.gz", "b.tgz", "c.tar.zst", "d.tar", "e.gz"})
    std::ofstream(folder.path() / name) << "x";
  const std::string path = folder.path();
  EXPECT_EQ(list_local_shards({path}),
            (Names{path + "/a.tar.gz", path + "/b.tgz", path + "/c.tar.zst", path + "/d.tar"}));
  std::ofstream(folder.path() / "a.tar") << "x";
  std::string text;
  EXPECT_EQ(fault_of([&] { list_local_shards({path}); }, &text), Fault::misuse);
  EXPECT_NE(text.find("a.tar: the folder also has"), text.npos) << text;
}

TEST(ShardNames, DivideThePathOfAFileAtTheFirstDotOfItsLastPart) {
  struct Case {
    const char* name;
    const char* key;  // Empty: no part of a sample.
    const char* suffix;
  };
  for (const Case& each : {Case{"a.jpg", "a", "jpg"},
                           {"a.b/c.Seg.PNG", "a.b/c", "seg.png"},
                           {"./x.cls", "./x", "cls"},
                           {"a.", "a", ""},
                           {"README", "", ""},
                           {".hidden", "", ""},
                           {"a/.hidden.txt", "a/", "hidden.txt"},  // As WebDataset.
                           {"a.b/.hidden.txt", "", ""},
                           {"a.b/c/.hidden", "a.b/c/", "hidden"},
                           {"./.hidden", "", ""},
                           {"/.hidden", "/", "hidden"},
                           {"..txt", "", ""},
                           {"a..txt", "a", ".txt"},
                           {"a/", "", ""},
                           {"", "", ""},
                           {"__meta__.json", "__meta__", "json"},
                           {"__meta__", "", ""},
                           {"__meta__/a.json", "", ""},
                           {"a/__b__.txt", "a/__b__", "txt"},
                           {"\xff\n.jpg", "\xff\n", "jpg"}}) {
    const auto divided = divide_name(each.name);
    EXPECT_EQ(divided.has_value(), *each.key != '\0') << each.name;
    if (!divided) continue;
    EXPECT_EQ(divided->key, each.key);
    EXPECT_EQ(divided->suffix, each.suffix);
  }
}

TEST(FolderSamples, ReportAPathThatCannotBeResolvedAsAnError) {
  const std::string too_long(300, 'x');
  std::string text;
  EXPECT_EQ(fault_of([&] { lies_in(too_long, "/"); }, &text), Fault::system);
  EXPECT_NE(text.find(too_long + ": File name too long"), text.npos) << text;
}

}  // namespace
}  // namespace lockstep::datasets::shard_names_test
