// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <fstream>
#include <iterator>
#include <random>
#include <thread>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/job/store/store.h"
#include "lockstep/job/store/store_protocol.h"
#include "tests/fault_of.h"
#include "tests/file_size_limit.h"
#include "tests/ranks.h"

namespace lockstep::job::file_store_test {
namespace {

using std::chrono::milliseconds;
using test::fault_of;

class FileStoreFile : public testing::Test {
 protected:
  std::string read() const {
    std::ifstream file(path_, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void write(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes;
    ::chmod(path_.c_str(), 0600);
  }

  test::ScratchDirectory scratch_;
  const std::string path_ = scratch_.path() / "store";
};

TEST_F(FileStoreFile, ItIsPrivateAndOutlivesItsWriter) {
  FileStore({.path = path_}).set("a", "1");
  struct stat status {};
  ASSERT_EQ(::stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_EQ(FileStore({.path = path_}).find("a"), "1");
}

TEST_F(FileStoreFile, LinksAndFilesThatAreOpenToOthersAreMisuse) {
  { FileStore store({.path = path_}); }
  const std::string link = scratch_.path() / "link";
  std::filesystem::create_symlink(path_, link);
  EXPECT_EQ(fault_of([&] { FileStore store({.path = link}); }), Fault::misuse);
  ::chmod(path_.c_str(), 0644);
  EXPECT_EQ(fault_of([&] { FileStore store({.path = path_}); }), Fault::misuse);
}

TEST_F(FileStoreFile, ARecordThatWasCutAnywhereIsDroppedAndWhatWasBeforeStays) {
  {
    FileStore store({.path = path_});
    store.set("a", "first");
  }
  const std::size_t before = read().size();
  FileStore({.path = path_}).set("b", "second");
  const std::string whole = read();
  for (std::size_t length = 0; length < whole.size(); ++length) {
    if (length > file_store_magic.size() && length < before) continue;
    write(whole.substr(0, length));
    FileStore store({.path = path_});
    EXPECT_EQ(store.find("a").has_value(), length >= before) << length;
    EXPECT_EQ(store.find("b"), std::nullopt) << length;
    store.set("b", "again");
    EXPECT_EQ(FileStore({.path = path_}).find("b"), "again") << length;
  }
}

TEST_F(FileStoreFile, EveryChangedBitIsAnErrorThatNamesTheFile) {
  FileStore({.path = path_}).set("key", "value");
  const std::string whole = read();
  for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    std::string changed = whole;
    changed[bit / 8] ^= static_cast<char>(1 << bit % 8);
    write(changed);
    std::string text;
    ASSERT_EQ(fault_of([&] { FileStore store({.path = path_}); }, &text), Fault::corrupt) << bit;
    ASSERT_NE(text.find(path_), text.npos) << text;
  }
}

TEST_F(FileStoreFile, AFileThatShrinksUnderUsIsCorrupt) {
  FileStore store({.path = path_});
  store.set("a", "1");
  write(read().substr(0, 20));
  EXPECT_EQ(fault_of([&] { store.find("a"); }), Fault::corrupt);
}

TEST_F(FileStoreFile, OverwritingForLongDoesNotFillTheDisk) {
  FileStore writer({.path = path_});
  FileStore reader({.path = path_});
  const std::string value(100'000, 'v');
  for (int i = 0; i < 100; ++i) {
    writer.set("same", value + std::to_string(i));
    EXPECT_EQ(reader.find("same"), value + std::to_string(i));
    EXPECT_EQ(reader.add("count", 1), i + 1);
  }
  EXPECT_LT(read().size(), 2'000'000u);
  EXPECT_FALSE(std::filesystem::exists(path_ + ".compact"));
}

TEST_F(FileStoreFile, ExceedingTheFileSizeLimitIsAnErrorAndKillsNoProcess) {
  FileStore store({.path = path_});
  store.set("a", "1");
  {
    const test::FileSizeLimit limit(4096);
    std::string text;
    EXPECT_EQ(fault_of([&] { store.set("b", std::string(8192, 'x')); }, &text), Fault::system);
    EXPECT_NE(text.find("store file " + path_), text.npos) << text;
  }
  EXPECT_EQ(store.find("a"), "1");
  EXPECT_EQ(store.find("b"), std::nullopt);
}

TEST_F(FileStoreFile, AComparisonThatFailsWritesNothing) {
  FileStore store({.path = path_});
  store.set("a", "new");
  const std::string before = read();
  EXPECT_EQ(store.compare_set("a", "old", "new"), "new");
  EXPECT_EQ(store.compare_set("a", "old", "other"), "new");
  EXPECT_EQ(store.compare_set("b", "old", "new"), "old");
  EXPECT_EQ(read(), before);
  store.compare_set("a", "new", "newer");
  EXPECT_EQ(FileStore({.path = path_}).find("a"), "newer");
}

TEST_F(FileStoreFile, ALockThatNobodyGivesBackIsATimeout) {
  FileStore store({.path = path_, .timeout = milliseconds(100)});
  const FileDescriptor other(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::flock(other.get(), LOCK_EX), 0);
  EXPECT_EQ(fault_of([&] { store.set("a", "1"); }), Fault::timeout);
  EXPECT_EQ(fault_of([&] { store.wait("a", in(milliseconds(100))); }), Fault::timeout);
  ::flock(other.get(), LOCK_UN);
  store.set("a", "1");
}

void kill_soon() {
  std::thread([] {
    std::this_thread::sleep_for(milliseconds(30 + std::random_device{}() % 50));
    ::kill(::getpid(), SIGKILL);
  }).detach();
}

// Writes until it is killed during a write, but not before the reader has read its first round.
// Each value contains its length.
void write_until_killed(Store& store, const std::string& name) {
  for (;;) {
    const std::int64_t round = store.add(name + "/round", 1);
    if (round == 1) kill_soon();
    const auto size = static_cast<std::size_t>(round * 7919 % 200'000);
    store.set(name, std::to_string(size) + ":" + std::string(size, 'v'));
  }
}

void expect_whole(const std::optional<std::string>& value) {
  if (!value) return;
  const std::size_t colon = value->find(':');
  ASSERT_NE(colon, value->npos);
  EXPECT_EQ(std::stoul(value->substr(0, colon)), value->size() - colon - 1);
}

const test::Ranks killed_writers("store: killed writers", [](const test::Rank& rank) {
  FileStore store({.path = rank.scratch / "store"});
  if (rank.rank > 0) write_until_killed(store, std::to_string(rank.rank));
  for (const std::string writer : {"1", "2"}) {
    std::string before;
    for (std::string now = store.wait(writer + "/round", in(std::chrono::seconds(50)));
         now != before; now = store.find(writer + "/round").value()) {
      before = now;
      for (int i = 0; i < 40; ++i) {
        expect_whole(store.find(writer));
        std::this_thread::sleep_for(milliseconds(5));
      }
    }
  }
  store.set("after", "all");
  EXPECT_EQ(FileStore({.path = rank.scratch / "store"}).find("after"), "all");
});

TEST_F(FileStoreFile, WritersThatAreKilledLeaveWholeValuesAndNoLock) {
  const auto exits = killed_writers.run(3);
  EXPECT_EQ(exits[0].code, 0) << exits[0].output;
  EXPECT_EQ(exits[1].signal, SIGKILL) << exits[1].output;
  EXPECT_EQ(exits[2].signal, SIGKILL) << exits[2].output;
}

}  // namespace
}  // namespace lockstep::job::file_store_test
