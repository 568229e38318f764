// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/images/folder_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/fault_of.h"
#include "tests/ranks.h"

namespace lockstep::datasets::folder_index_test {
namespace {

using Names = std::vector<std::string>;

class FolderOfClasses : public testing::Test {
 protected:
  void add(const std::string& file) {
    const std::filesystem::path path = root() / file;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << "x";
  }

  std::filesystem::path root() const { return scratch_.path() / "root"; }

  Names listed() const {
    const FolderIndex index(root());
    Names names;
    for (std::size_t i = 0; i < index.size(); ++i) {
      std::string name = std::to_string(index.class_of(i));
      name += ": ";
      names.push_back(name + index.path_of(i).substr(root().native().size() + 1));
    }
    return names;
  }

  std::string error(Fault fault) const {
    std::string text;
    EXPECT_EQ(test::fault_of([&] { FolderIndex index(root()); }, &text), fault);
    return text;
  }

 private:
  test::ScratchDirectory scratch_;
};

TEST_F(FolderOfClasses, IsListedClassByClassFolderByFolder) {
  for (const char* file : {"b/2.png", "b/10.png", "a/z.JPEG", "a/sub/1.jpg", "a/sub-a/1.jpg",
                           "a/notes.txt", "top.jpg", "a/x.jpg.part", "b/.jpg"})
    add(file);
  EXPECT_EQ(listed(), (Names{"0: a/z.JPEG", "0: a/sub/1.jpg", "0: a/sub-a/1.jpg", "1: b/.jpg",
                             "1: b/10.png", "1: b/2.png"}));
}

TEST_F(FolderOfClasses, FollowsLinksAndListsBrokenOnes) {
  add("a/1.jpg");
  add("elsewhere/b/2.jpg");
  std::filesystem::create_directory_symlink("elsewhere/b", root() / "linked");
  std::filesystem::create_symlink("nothing", root() / "a" / "0.jpg");
  EXPECT_EQ(listed(),
            (Names{"0: a/0.jpg", "0: a/1.jpg", "1: elsewhere/b/2.jpg", "2: linked/2.jpg"}));
}

TEST_F(FolderOfClasses, WithALinkBackIsRefused) {
  add("a/1.jpg");
  std::filesystem::create_directory_symlink("..", root() / "a" / "back");
  EXPECT_NE(error(Fault::system).find("a/back/a"), std::string::npos);
}

TEST_F(FolderOfClasses, MustHaveClassesAndEachClassImages) {
  EXPECT_NE(error(Fault::system).find("root"), std::string::npos);
  std::filesystem::create_directories(root());
  EXPECT_NE(error(Fault::misuse).find("no class folders"), std::string::npos);
  add("a/1.jpg");
  add("b/1.txt");
  std::filesystem::create_directory(root() / "c");
  EXPECT_NE(error(Fault::misuse).find("classes without images: b, c"), std::string::npos);
}

TEST_F(FolderOfClasses, HasAFingerprintOfItsNames) {
  add("a/1.jpg");
  add("a/2.jpg");
  const auto before = FolderIndex(root()).fingerprint();
  EXPECT_EQ(FolderIndex(root()).fingerprint(), before);
  std::filesystem::rename(root() / "a/2.jpg", root() / "a/3.jpg");
  EXPECT_NE(FolderIndex(root()).fingerprint(), before);
  std::filesystem::rename(root() / "a/3.jpg", root() / "a/2.jpg");
  std::filesystem::rename(root() / "a", root() / "b");
  EXPECT_NE(FolderIndex(root()).fingerprint(), before);
}

TEST(PythonsOrder, IsThatOfCodePoints) {
  const Names rising{"",
                     "a",
                     "a-",
                     "a/b",
                     "ab",
                     "a\xc3\xa9",
                     "a\xe2\x82\xac",
                     "a\xe2\x82",
                     "a\xff",
                     "a\xef\xbf\xbd",
                     "a\xf0\x9f\x98\x80"};
  for (std::size_t i = 0; i < rising.size(); ++i)
    for (std::size_t j = 0; j < rising.size(); ++j)
      EXPECT_EQ(python_sorts_before(rising[i], rising[j]), i < j) << i << " and " << j;
}

}  // namespace
}  // namespace lockstep::datasets::folder_index_test
