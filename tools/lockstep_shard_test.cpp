// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "lockstep/base/output_file.h"
#include "lockstep/toolkit/datasets/mapped_file.h"
#include "lockstep/toolkit/datasets/shards/shard_index.h"
#include "tests/ranks.h"
#include "tests/rigs/command.h"

namespace lockstep::test::lockstep_shard_test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

std::string content_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

class LockstepShard : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.path() / name; }

  void write(const std::string& name, const std::string& content) const {
    fs::create_directories(fs::path(path(name)).parent_path());
    std::ofstream(path(name), std::ios::binary) << content;
  }

  Finished shard(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {LOCKSTEP, "shard", path("in"), "--out", path("out")});
    return run_command(std::move(arguments));
  }

  std::set<std::string> files(const std::string& folder) const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(path(folder)))
      names.insert(entry.path().filename());
    return names;
  }

  std::vector<std::pair<std::string, std::string>> members(const std::string& name) const {
    std::vector<std::pair<std::string, std::string>> all;
    for (int number = 0; number < 100; ++number) {
      const std::string digits = std::to_string(number);
      const std::string file =
          path("out/" + name + "-" + std::string(6 - digits.size(), '0') + digits + ".tar");
      if (!fs::exists(file)) break;
      const std::string bytes = content_of(file);
      const datasets::TarContents contents = datasets::read_tar(datasets::open_to_read(file), file);
      for (const datasets::TarMember& member : contents.members)
        all.emplace_back(member.name, bytes.substr(member.offset, member.size));
    }
    return all;
  }

 private:
  const ScratchDirectory folder_;
};

using Members = std::vector<std::pair<std::string, std::string>>;

TEST_F(LockstepShard, WritesTheFilesOfASampleNextToEachOther) {
  write("in/b.jpg", "1");
  write("in/a.txt", "2");
  write("in/b.json", "3");
  write("in/c/a.txt", "4");
  write("in/README", "5");
  write("in/.hidden.txt", "6");
  const Finished done = shard({"--in-order"});
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_EQ(members("shard"),
            (Members{{"a.txt", "2"}, {"b.jpg", "1"}, {"b.json", "3"}, {"c/a.txt", "4"}}));
  EXPECT_TRUE(has(done.out,
                  "3 samples in 1 shard of 5.1 KB; 2 files left out, such as "
                  ".hidden.txt\n"))
      << done.out;
  EXPECT_TRUE(has(done.err, "shards: 1/1")) << done.err;
}

TEST_F(LockstepShard, GivesFoldersNumbersAsImageFolderDoes) {
  write("in/dog/1.jpg", "a");
  write("in/cat/1.jpg", "b");
  write("in/cat/2.JPG", "c");
  write("in/cat/2.json", "d");
  write("in/cat/Thumbs.db", "no image");
  write("in/README.txt", "no image");
  const Finished done = shard({"--labels", "--in-order", "--name", "train", "--quiet"});
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_TRUE(has(done.out, "2 files left out, such as README.txt")) << done.out;
  EXPECT_EQ(members("train"), (Members{{"cat/1.jpg", "b"},
                                       {"cat/1.cls", "0"},
                                       {"cat/2.JPG", "c"},
                                       {"cat/2.json", "d"},
                                       {"cat/2.cls", "0"},
                                       {"dog/1.jpg", "a"},
                                       {"dog/1.cls", "1"}}));
  EXPECT_EQ(content_of(path("out/train-classes.txt")), "cat\ndog\n");
}

TEST_F(LockstepShard, RefusesClassesWithoutImages) {
  write("in/cat/1.jpg", "a");
  write("in/dog/1.txt", "b");
  const Finished refused = shard({"--labels"});
  EXPECT_EQ(refused.code, 64);
  EXPECT_TRUE(has(refused.err, "'dog' is a folder of a class without images")) << refused.err;
  write("in/dog/1.2.jpg", "c");
  EXPECT_EQ(shard({"--labels"}).code, 0) << "it is the sample 1_2";
}

TEST_F(LockstepShard, CountsEmptyFoldersAndLinksAsClasses) {
  write("in/ant/1.jpg", "a");
  write("in/dog/1.jpg", "b");
  write("elsewhere/1.jpg", "c");
  fs::create_directory_symlink(path("elsewhere"), path("in/cat"));
  EXPECT_EQ(shard({"--labels", "--in-order", "--name", "train"}).code, 0);
  EXPECT_EQ(content_of(path("out/train-classes.txt")), "ant\ncat\ndog\n");
  EXPECT_EQ(members("train").at(3), (std::pair<std::string, std::string>{"cat/1.cls", "1"}));
  fs::create_directory(path("in/bee"));
  const Finished refused = shard({"--labels", "--name", "other"});
  EXPECT_EQ(refused.code, 64);
  EXPECT_TRUE(has(refused.err, "'bee' is a folder of a class without images")) << refused.err;
  fs::create_directory_symlink(path("in"), path("in/ant/back"));
  EXPECT_TRUE(has(shard({}).err, "in/ant/back: a link to a folder above it"));
}

TEST_F(LockstepShard, WritesNoShardsBelowItsFolder) {
  write("in/1.txt", "a");
  for (const char* out : {"in", "in/shards"}) {
    const Finished refused = run_command({LOCKSTEP, "shard", path("in"), "--out", path(out)});
    EXPECT_EQ(refused.code, 64);
    EXPECT_TRUE(has(refused.err, "would be samples")) << refused.err;
  }
}

TEST_F(LockstepShard, ShufflesByTheSeed) {
  for (int i = 0; i < 50; ++i) write("in/" + std::to_string(i) + ".txt", std::to_string(i));
  EXPECT_EQ(shard({"--name", "a", "--samples", "7"}).code, 0);
  EXPECT_EQ(shard({"--name", "b", "--samples", "7"}).code, 0);
  EXPECT_EQ(shard({"--name", "c", "--samples", "7", "--seed", "1"}).code, 0);
  Members a = members("a"), c = members("c");
  EXPECT_EQ(a.size(), 50U);
  EXPECT_EQ(a, members("b"));
  EXPECT_NE(a, c);
  EXPECT_EQ(content_of(path("out/a-000003.tar")), content_of(path("out/b-000003.tar")));
  std::ranges::sort(a);
  std::ranges::sort(c);
  EXPECT_EQ(a, c);
  EXPECT_FALSE(fs::exists(path("out/a-000008.tar")));
}

TEST_F(LockstepShard, GoesOnAfterAnInterruption) {
  for (int i = 0; i < 40; ++i)
    write("in/" + std::to_string(i) + ".bin", std::string(1000, static_cast<char>('a' + i % 26)));
  EXPECT_EQ(shard({"--size", "20K"}).code, 0);
  const Members whole = members("shard");
  EXPECT_EQ(whole.size(), 40U);
  std::map<std::string, std::string> bytes;
  for (const auto& entry : fs::directory_iterator(path("out"))) {
    bytes[entry.path()] = content_of(entry.path());
    EXPECT_LE(entry.file_size(), 20U << 10);
  }
  fs::remove(path("out/shard-000001.tar"));
  fs::remove(path("out/shard-000000.tar.index"));  // As if killed before writing the index.
  const Finished again = shard({"--size", "20K"});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_TRUE(has(again.out, "shards were there already")) << again.out;
  EXPECT_EQ(members("shard"), whole);
  for (const auto& [file, content] : bytes) {
    if (!file.ends_with("-000001.tar.index")) {
      EXPECT_EQ(content_of(file), content) << file;
    }
  }
}

TEST_F(LockstepShard, ReplacesShardsOfOtherSamplesOnlyIfItMust) {
  write("in/a.txt", "1");
  EXPECT_EQ(shard({}).code, 0);
  write("in/a.txt", "22");
  const Finished refused = shard({});
  EXPECT_EQ(refused.code, 64);
  EXPECT_TRUE(has(refused.err, "shard-000000.tar: the shard exists with other samples"))
      << refused.err;
  EXPECT_EQ(members("shard"), (Members{{"a.txt", "1"}}));
  EXPECT_EQ(shard({"--force"}).code, 0);
  EXPECT_EQ(members("shard"), (Members{{"a.txt", "22"}}));
  write("in/a.txt", "33");
  fs::last_write_time(path("in/a.txt"), fs::last_write_time(path("out/shard-000000.tar")) + 1ms);
  EXPECT_TRUE(has(shard({}).err, "or with files that were changed since"));
  EXPECT_EQ(shard({"--force"}).code, 0);
  EXPECT_EQ(members("shard"), (Members{{"a.txt", "33"}}));
}

TEST_F(LockstepShard, RemovesWhatEarlierRunsHaveLeftOver) {
  write("in/a.txt", "1");
  write("out/shard-000001.tar", "of a larger run");
  write("out/shard-000007.tar", "likewise");
  write("out/shard-000007.tar.index", "its index");
  write("out/shard-000008.tar.bak", "another file");
  EXPECT_TRUE(has(shard({}).err, "shard-000001.tar: a shard of another run"));
  const Finished forced = shard({"--force"});
  EXPECT_EQ(forced.out, "1 sample in 1 shard of 2.0 KB; 2 shards of an earlier run removed\n");
  EXPECT_FALSE(fs::exists(path("out/shard-000001.tar")));
  EXPECT_FALSE(fs::exists(path("out/shard-000007.tar")));
  EXPECT_FALSE(fs::exists(path("out/shard-000007.tar.index")));
  EXPECT_TRUE(fs::exists(path("out/shard-000008.tar.bak")));
}

TEST_F(LockstepShard, RemovesWhatItsKilledRunsHaveNotFinished) {
  write("in/a.txt", "1");
  EXPECT_EQ(shard({}).code, 0);
  const std::set<std::string> complete = files("out");
  const auto start_to_write = [&](const std::string& name) {
    return std::make_unique<AtomicFile>(path("out/") + name, 0);
  };
  const pid_t killed = ::fork();
  if (killed == 0) {
    const auto shard = start_to_write("shard-000000.tar"), other = start_to_write("other.tar");
    ::_exit(0);
  }
  ::waitpid(killed, nullptr, 0);
  std::set<std::string> foreign;  // Files of another host, where this pid may be in use.
  for (const std::string& left : files("out")) {
    if (!left.starts_with("shard-000000.tar.tmp-")) continue;
    foreign.insert("shard-000000.tar.tmp-00000000" + left.substr(left.find('-', 22)));
  }
  ASSERT_EQ(foreign.size(), 1U);
  write("out/" + *foreign.begin(), "half");
  const auto running = start_to_write("shard-000000.tar");

  std::string of_killed = "-";  // In steps, because GCC 12 has a false warning for one expression.
  of_killed.append(std::to_string(killed)).append("-");
  std::set<std::string> kept = files("out");
  EXPECT_EQ(kept.size(), complete.size() + 4);
  std::erase_if(kept, [&](const std::string& name) {
    return name.starts_with("shard-000000.tar.tmp-") && !foreign.contains(name) &&
           name.find(of_killed) != name.npos;
  });
  EXPECT_EQ(kept.size(), complete.size() + 3);
  EXPECT_EQ(shard({}).out, "1 sample in 1 shard of 2.0 KB; 1 shard was there already\n");
  EXPECT_EQ(files("out"), kept);
}

TEST_F(LockstepShard, TakesDotsInTheNamesOfImagesForUnderscores) {
  write("in/cat/a.b.jpg", "1");
  write("in/cat/a.b.json", "2");
  write("in/cat/a.c.d.JPG", "3");
  write("in/cat/e.notes.txt", "4");
  write("in/dog/f.jpg", "5");
  const Finished done = shard({"--labels", "--in-order"});
  EXPECT_TRUE(has(done.out, "3 samples in 1 shard")) << done.out << done.err;
  EXPECT_TRUE(has(done.out, "1 file left out, such as cat/e.notes.txt")) << done.out;
  EXPECT_EQ(members("shard"), (Members{{"cat/a_b.jpg", "1"},
                                       {"cat/a_b.json", "2"},
                                       {"cat/a_b.cls", "0"},
                                       {"cat/a_c_d.JPG", "3"},
                                       {"cat/a_c_d.cls", "0"},
                                       {"dog/f.jpg", "5"},
                                       {"dog/f.cls", "1"}}));
  write("in/cat/a_b.jpg", "6");
  EXPECT_TRUE(has(shard({"--labels", "--name", "twice"}).err, "'cat/a_b' would be two samples"));
}

TEST_F(LockstepShard, RefusesFilesThatWouldBecomeOneSampleByMistake) {
  write("in/cat/1.jpg", "a");
  write("in/cat/1.JPG", "b");
  Finished refused = shard({});
  EXPECT_EQ(refused.code, 64);
  EXPECT_TRUE(has(refused.err, "'cat/1' would be a sample with two files 'jpg'")) << refused.err;
  fs::remove(path("in/cat/1.JPG"));
  write("in/cat/1.v2.jpg", "b");
  EXPECT_EQ(shard({"--name", "plain"}).code, 0);
  refused = shard({"--labels"});
  EXPECT_EQ(refused.code, 64);
  EXPECT_TRUE(has(refused.err, "rename the one with more dots")) << refused.err;
  fs::remove(path("in/cat/1.v2.jpg"));
  write("in/top.jpg", "c");
  EXPECT_TRUE(has(shard({"--labels"}).err, "'top' lies in no folder of a class"));
}

TEST_F(LockstepShard, ExplainsItself) {
  const Finished help = run_command({LOCKSTEP, "shard", "--help"});
  EXPECT_EQ(help.code, 0);
  for (const char* word : {"--labels", "--samples", "Examples:", "Exit code"})
    EXPECT_TRUE(has(help.out, word)) << help.out;
  EXPECT_EQ(run_command({LOCKSTEP, "shard"}).code, 64);
  const Finished absent = run_command({LOCKSTEP, "shard", "nonexist", "--out", path("out")});
  EXPECT_EQ(absent.code, 64);
  EXPECT_TRUE(has(absent.err, "there is no folder 'nonexist'; lockstep shard has no subcommands"))
      << absent.err;
  EXPECT_TRUE(has(run_command({LOCKSTEP, "shard", "/etc/passwd", "--out", path("out")}).err,
                  "'/etc/passwd' is not a folder"));
  write("in/a.txt", "1");
  EXPECT_EQ(shard({"--size", "1M", "--samples", "3"}).code, 64);
  EXPECT_EQ(shard({"--name", "a/b"}).code, 64);
  EXPECT_TRUE(has(shard({"--size", "0"}).err, "--size: 0 is not at least 1"));
  EXPECT_TRUE(has(shard({"--samples", "0"}).err, "--samples: 0 is not at least 1"));
}

}  // namespace
}  // namespace lockstep::test::lockstep_shard_test
