// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/shards/tar_shards.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/toolkit/datasets/shards/shard_index.h"
#include "lockstep/toolkit/datasets/shards/shard_writer.h"
#include "lockstep/toolkit/datasets/shards/tar_members.h"
#include "lockstep/toolkit/datasets/shards/write_tar.h"
#include "tests/fault_of.h"
#include "tests/file_size_limit.h"
#include "tests/ranks.h"
#include "tests/soon.h"

namespace lockstep::datasets::tar_shards_test {
namespace {

namespace fs = std::filesystem;
using test::await_file;
using test::fault_of;

std::string content_of(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void write_samples(const fs::path& prefix, std::size_t samples, ShardWriterOptions options = {}) {
  ShardWriter writer(prefix, options);
  for (std::size_t i = 0; i < samples; ++i) {
    const std::string number = std::to_string(i);
    writer.write("class/" + number, {{"txt", "sample " + number}, {"cls", number}});
  }
  writer.finish();
}

class Shards : public testing::Test {
 protected:
  std::string in_folder(const std::string& name) const { return folder_.path() / name; }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(in_folder(name), std::ios::binary) << bytes;
    return in_folder(name);
  }

 private:
  const test::ScratchDirectory folder_;
};

std::string tar_file(const std::string& name, const std::string& content) {
  std::string file = tar_headers(name, content.size()) + content;
  return file + std::string(padded_to_blocks(content.size()) - content.size(), '\0');
}

TEST_F(Shards, HaveTheSamplesThatWereWritten) {
  write_samples(in_folder("train"), 10, {.samples = 4});
  const TarShards shards({in_folder("train-{000000..000002}.tar")});
  EXPECT_EQ(shards.size(), 10U);
  EXPECT_EQ(shards.shards(), 3U);
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const ShardSample sample = shards.sample(i);
    EXPECT_EQ(sample.key, "class/" + std::to_string(i));
    EXPECT_EQ(sample.parts,
              (std::map<std::string, std::string, std::less<>>{
                  {"txt", "sample " + std::to_string(i)}, {"cls", std::to_string(i)}}));
  }
  EXPECT_EQ(shards.suffixes(3), (std::vector<std::string>{"txt", "cls"}));
  EXPECT_EQ(shards.part_bytes(3, "txt"), 8U);
  EXPECT_EQ(shards.part_bytes(3, "jpg"), std::nullopt);
  EXPECT_TRUE(shards.sample_name(9).ends_with("train-000002.tar: class/9"));
  EXPECT_EQ(fault_of([&] { shards.sample(10); }), Fault::misuse);
}

TEST_F(Shards, AreCutByBytesAndHaveTheSameBytesEachTime) {
  write_samples(in_folder("a"), 20, {.shard_bytes = 10'000});
  write_samples(in_folder("b"), 20, {.shard_bytes = 10'000});
  const TarShards shards({in_folder("a-{000000..000004}.tar")});
  EXPECT_EQ(shards.size(), 20U);
  for (const char* number : {"000000", "000004"}) {
    EXPECT_LE(fs::file_size(in_folder(std::string("a-") + number + ".tar")), 10'000U);
    EXPECT_EQ(content_of(in_folder(std::string("a-") + number + ".tar")),
              content_of(in_folder(std::string("b-") + number + ".tar")));
  }
  EXPECT_FALSE(fs::exists(in_folder("a-000005.tar")));
}

TEST_F(Shards, KeepTheIndexThatTheWriterLeft) {
  write_samples(in_folder("train"), 10);
  const fs::path index = in_folder("train-000000.tar.index");
  const std::string written = content_of(index);
  struct stat before {
  }, after{};
  ASSERT_EQ(::stat(index.c_str(), &before), 0);
  const TarShards shards({in_folder("train-000000.tar")});
  ASSERT_EQ(::stat(index.c_str(), &after), 0);
  EXPECT_EQ(before.st_ino, after.st_ino);
  fs::remove(index);
  const TarShards again({in_folder("train-000000.tar")});
  EXPECT_EQ(content_of(index), written);
  EXPECT_EQ(shards.fingerprint(), again.fingerprint());
}

TEST_F(Shards, HaveTheFingerprintOfTheirSamplesWhateverTheirTime) {
  write_samples(in_folder("a"), 10);
  write_samples(in_folder("b"), 10);
  write_samples(in_folder("c"), 11);
  fs::last_write_time(in_folder("b-000000.tar"), fs::file_time_type::clock::now());
  const auto fingerprint = [&](const std::string& name) {
    return TarShards({in_folder(name + "-000000.tar")}).fingerprint();
  };
  EXPECT_EQ(fingerprint("a"), fingerprint("b"));
  EXPECT_NE(fingerprint("a"), fingerprint("c"));
}

TEST_F(Shards, ReplaceADamagedIndex) {
  write_samples(in_folder("train"), 10);
  const fs::path index = in_folder("train-000000.tar.index");
  const std::string written = content_of(index);
  for (std::size_t place = 0; place < written.size(); place += 7) {
    std::string damaged = written;
    damaged[place] = static_cast<char>(damaged[place] ^ 0x10);
    std::ofstream(index, std::ios::binary) << damaged;
    EXPECT_EQ(TarShards({in_folder("train-000000.tar")}).size(), 10U);
    EXPECT_EQ(content_of(index), written);
  }
}

TEST_F(Shards, MayKeepTheirIndexesInAnotherFolder) {
  fs::create_directory(in_folder("a"));
  fs::create_directory(in_folder("b"));
  write_samples(in_folder("a/train"), 3);
  write_samples(in_folder("b/train"), 5);
  for (const char* folder : {"a", "b"})
    fs::remove(in_folder(folder + std::string("/train-000000.tar.index")));
  const TarShards shards({in_folder("a"), in_folder("b")},
                         {.index_folder = in_folder("indexes/of/shards")});
  EXPECT_EQ(shards.size(), 8U);
  EXPECT_FALSE(fs::exists(in_folder("a/train-000000.tar.index")));
}

TEST_F(Shards, ReportTheOptionForAnotherIndexFolder) {
  write_samples(in_folder("train"), 10);
  fs::remove(in_folder("train-000000.tar.index"));
  std::string text;
  {
    const test::FileSizeLimit full(100);
    EXPECT_EQ(fault_of([&] { TarShards({in_folder("train-000000.tar")}); }, &text), Fault::system);
  }
  EXPECT_NE(text.find("TarShardsOptions::index_folder"), text.npos) << text;
  for (const auto& entry : fs::directory_iterator(in_folder("")))
    EXPECT_EQ(entry.path().filename(), "train-000000.tar");  // Nothing is left.
}

TEST_F(Shards, RefuseAShardThatWasChangedUnderItsIndex) {
  write_samples(in_folder("train"), 10);
  const std::string path = in_folder("train-000000.tar");
  const TarShards shards({path});
  shards.sample(0);
  std::ofstream(path, std::ios::binary | std::ios::app) << "x";
  std::string text;
  EXPECT_EQ(fault_of([&] { shards.sample(1); }, &text), Fault::corrupt);
  EXPECT_NE(text.find(path + ": the shard was changed since its index was made"), text.npos)
      << text;
}

TEST_F(Shards, ReplaceTheIndexOfAShardThatWasReplaced) {
  write_samples(in_folder("train"), 10);
  EXPECT_EQ(TarShards({in_folder("train-000000.tar")}).size(), 10U);
  write("train-000000.tar", tar_file("a.txt", "1") + tar_end());
  EXPECT_EQ(TarShards({in_folder("train-000000.tar")}).size(), 1U);
}

TEST_F(Shards, GroupConsecutiveFilesOfOneKey) {
  const auto path = write("x.tar", tar_file("a.TXT", "1") + tar_file("a.b.txt", "2") +
                                       tar_file("README", "3") + tar_file("__x__/a.txt", "4") +
                                       tar_file("c.txt", "5") + tar_file("a.txt", "6") + tar_end());
  const TarShards shards({path});
  ASSERT_EQ(shards.size(), 3U);
  EXPECT_EQ(shards.suffixes(0), (std::vector<std::string>{"txt", "b.txt"}));
  EXPECT_EQ(shards.key(1), "c");
  EXPECT_EQ(shards.sample(2).parts.at("txt"), "6");

  std::string text;
  const auto twice = write("y.tar", tar_file("a.txt", "1") + tar_file("a.TXT", "2") + tar_end());
  EXPECT_EQ(fault_of([&] { TarShards({twice}); }, &text), Fault::corrupt);
  EXPECT_NE(text.find("sample 'a' has two files 'txt'"), text.npos) << text;
  EXPECT_EQ(fault_of([&] { TarShards({write("z.tar", tar_end())}); }), Fault::misuse);
}

std::string special(const std::string& name, char type) {
  std::string text = tar_headers(name, 0);
  TarHeader header{};
  std::memcpy(&header, text.data(), sizeof header);
  header.type = type;
  std::snprintf(header.checksum.data(), header.checksum.size(), "%06o", tar_checksum(header));
  return {reinterpret_cast<const char*>(&header), sizeof header};
}

TEST_F(Shards, CountSkippedEntriesAndRefuseThemStrictlyWhicheverReaderMadeTheIndex) {
  const auto path = write("x.tar", tar_file("a.txt", "1") + special("fifo", '6') +
                                       special("link.txt", '2') + tar_end());
  for (int reading = 0; reading < 2;
       ++reading) {  // With a new index, and with the one that is there.
    EXPECT_EQ(TarShards({path}).skipped(), 2U);
    std::string text;
    EXPECT_EQ(fault_of([&] { TarShards({path}, {.strict = true}); }, &text), Fault::unsupported);
    EXPECT_NE(text.find("x.tar: byte 1024: 'fifo', a FIFO"), text.npos) << text;
  }
  write_samples(in_folder("train"), 3);
  EXPECT_EQ(TarShards({in_folder("train-000000.tar")}, {.strict = true}).skipped(), 0U);
}

TEST_F(Shards, ReplaceAnIndexOfTheFirstVersion) {
  const auto path = write("x.tar", tar_file("d/.y.txt", "1") + tar_file("a.txt", "2") + tar_end());
  EXPECT_EQ(TarShards({path}).size(), 2U);
  std::string index = content_of(index_beside(path));
  const std::string written = index;
  index[15] = '1';
  write("x.tar.index", index);
  EXPECT_EQ(TarShards({path}).size(), 2U);
  EXPECT_EQ(content_of(index_beside(path)), written);
}

std::string gzipped(const std::string& bytes) {
  const test::ScratchDirectory folder;
  const std::string path = folder.path() / "x.gz";
  const gzFile file = ::gzopen(path.c_str(), "wb");
  ::gzwrite(file, bytes.data(), static_cast<unsigned>(bytes.size()));
  ::gzclose(file);
  return content_of(path);
}

TEST_F(Shards, MayBeCompressedAndAreThenReadInOrder) {
  write_samples(in_folder("train"), 40);
  const std::string plain = in_folder("train-000000.tar");
  const std::string packed = write("packed.tar.gz", gzipped(content_of(plain)));
  const TarShards expected({plain}), shards({packed});
  ASSERT_EQ(shards.size(), 40U);
  EXPECT_EQ(shards.fingerprint(), expected.fingerprint());
  for (const std::size_t step : {1, 7, 39}) {  // Back and forth, too.
    std::size_t i = 0;
    for (std::size_t count = 0; count < shards.size(); ++count, i = (i + step) % shards.size())
      EXPECT_EQ(shards.sample(i).parts, expected.sample(i).parts) << i;
  }
  std::vector<std::thread> readers;
  for (std::size_t thread = 0; thread < 3; ++thread)
    readers.emplace_back([&, thread] {
      for (std::size_t i = thread; i < shards.size(); i += 3)
        EXPECT_EQ(shards.sample(i).parts, expected.sample(i).parts);
    });
  for (std::thread& each : readers) each.join();
  std::string text;
  EXPECT_EQ(fault_of([&] { shards.order(); }, &text), Fault::unsupported);
  EXPECT_NE(text.find("packed.tar.gz: the shard is compressed"), text.npos) << text;
  EXPECT_EQ(fault_of([&] { TarShards({packed}, {.strict = true}); }), Fault::unsupported);
}

TEST_F(Shards, ReadSeveralArchivesInOneFileIfAsked) {
  const std::string first = tar_file("a.txt", "1") + tar_end();
  const auto path = write("x.tar", first + tar_file("b.txt", "2") + tar_end());
  for (int reading = 0; reading < 2; ++reading) {
    EXPECT_EQ(TarShards({path}).size(), 1U);
    const TarShards both({path}, {.concatenated = true});
    ASSERT_EQ(both.size(), 2U);
    EXPECT_EQ(both.sample(1).parts.at("txt"), "2");
  }
}

TEST_F(Shards, AreNotReadStrictlyAndConcatenatedWhetherTheyHaveAnIndexOrNot) {
  const auto path = write("x.tar", tar_file("a.txt", "1") + tar_end());
  for (int reading = 0; reading < 2; ++reading) {
    std::string text;
    EXPECT_EQ(fault_of([&] { TarShards({path}, {.strict = true, .concatenated = true}); }, &text),
              Fault::misuse);
    EXPECT_NE(text.find("set one of them only"), text.npos) << text;
    EXPECT_EQ(TarShards({path}, {.strict = true}).size(), 1U);  // Leaves an index.
    EXPECT_EQ(TarShards({path}, {.concatenated = true}).size(), 1U);
  }
}

const test::Ranks write_and_index("one rank writes, all make indexes", [](const test::Rank& rank) {
  const fs::path ready = rank.scratch / "ready";
  if (rank.rank == 0) {
    write_samples(rank.scratch / "train", 120, {.samples = 10});
    for (const auto& entry : fs::directory_iterator(rank.scratch))
      if (entry.path().extension() == ".index") fs::remove(entry.path());
    std::ofstream{ready};
  }
  await_file(ready);
  const TarShards shards({rank.scratch});
  EXPECT_EQ(shards.size(), 120U);
  for (std::size_t i = 0; i < shards.size(); ++i)
    EXPECT_EQ(shards.sample(i).key, "class/" + std::to_string(i));
});

TEST(ShardsOfRanks, AreIndexedByAllRanksAtOnce) {
  EXPECT_TRUE(test::all_succeeded(write_and_index.run(3)));
}

// --- Writer --------------------------------------------------------------------------------------

TEST_F(Shards, HaveNamesOfAnyBytes) {
  std::string odd;
  for (int byte = 1; byte < 256; ++byte)
    if (byte != '.' && byte != '/') odd += static_cast<char>(byte);
  const std::string key = odd + "/" + std::string(300, 'n') + "/" + odd;
  ShardWriter writer(in_folder("odd"));
  writer.write(key, {{"bin", "x"}});
  writer.finish();
  const TarShards shards({in_folder("odd-000000.tar")});
  EXPECT_EQ(shards.key(0), key);
  EXPECT_EQ(shards.sample(0).parts.at("bin"), "x");
}

TEST_F(Shards, RefuseSamplesThatCannotBeReadBack) {
  ShardWriter writer(in_folder("train"));
  const std::string zero("a\0b", 3);
  for (const auto& [key, suffix] :
       std::vector<std::pair<std::string, std::string>>{{"a.b", "txt"},
                                                        {"", "txt"},
                                                        {"a/", "txt"},
                                                        {"__x__/a", "txt"},
                                                        {zero, "txt"},
                                                        {"/a", "txt"},
                                                        {"../a", "txt"},
                                                        {"a/../b", "txt"},
                                                        {"./a", "txt"},
                                                        {"a//b", "txt"},
                                                        {"a", "b/c"}})
    EXPECT_EQ(fault_of([&] { writer.write(key, {{suffix, "x"}}); }), Fault::misuse) << key;
  EXPECT_EQ(fault_of([&] { writer.write("a", {}); }), Fault::misuse);
  EXPECT_EQ(fault_of([&] { writer.write("a", {{"txt", "x"}, {"TXT", "y"}}); }), Fault::misuse);
  EXPECT_FALSE(fs::exists(in_folder("train-000000.tar")));
}

TEST_F(Shards, RefuseASampleThatReadersWouldTakeForAPartOfTheOneBefore) {
  ShardWriter writer(in_folder("train"), {.samples = 2});
  for (const char* key : {"7", "8"}) {
    writer.write(key, {{"jpg", "x"}});
    EXPECT_EQ(fault_of([&] { writer.write(key, {{"png", "y"}}); }), Fault::misuse);
  }
  writer.write("7", {{"jpg", "z"}});
  writer.finish();
  EXPECT_EQ(TarShards({in_folder("train-{000000..000001}.tar")}).size(), 3U);
}

TEST_F(Shards, GetTheirNamesWhenTheyAreComplete) {
  {
    ShardWriter writer(in_folder("train"), {.samples = 2});
    for (const char* key : {"a", "b", "c"}) writer.write(key, {{"txt", "x"}});
    EXPECT_EQ(writer.shards(), 1U);
  }  // As after an exception.
  EXPECT_TRUE(fs::exists(in_folder("train-000000.tar")));
  std::size_t files = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(in_folder(""))) ++files;
  EXPECT_EQ(files, 2U);

  ShardWriter again(in_folder("train"));
  EXPECT_EQ(fault_of([&] { again.write("a", {{"txt", "x"}}); }), Fault::misuse);
  ShardWriter replacing(in_folder("train"), {.replace = true});
  replacing.write("z", {{"txt", "x"}});
  replacing.finish();
  EXPECT_EQ(TarShards({in_folder("train-000000.tar")}).key(0), "z");
}

TEST_F(Shards, AreLeftOutIfTheDiskIsFull) {
  ShardWriter writer(in_folder("train"), {.samples = 1});
  writer.write("a", {{"txt", "x"}});
  const std::string large(1 << 20, 'x');
  std::string text;
  {
    const test::FileSizeLimit full(1 << 16);
    EXPECT_EQ(fault_of([&] { writer.write("b", {{"txt", large}}); }, &text), Fault::system);
  }
  EXPECT_NE(text.find("train-000001.tar"), text.npos) << text;
  EXPECT_EQ(fault_of([&] { writer.write("c", {{"txt", "x"}}); }), Fault::misuse);
  EXPECT_EQ(fault_of([&] { writer.finish(); }), Fault::misuse);
  EXPECT_FALSE(fs::exists(in_folder("train-000001.tar")));
}

}  // namespace
}  // namespace lockstep::datasets::tar_shards_test
