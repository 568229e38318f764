// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/shards/fetched_shards.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/bytes.h"
#include "lockstep/base/error.h"
#include "lockstep/base/hash.h"
#include "lockstep/base/log.h"
#include "lockstep/base/processes.h"
#include "lockstep/base/time.h"
#include "lockstep/data/batch_filler.h"
#include "lockstep/data/distributed_sampler.h"
#include "lockstep/toolkit/datasets/shards/fetch_command.h"
#include "lockstep/toolkit/datasets/shards/shard_index.h"
#include "lockstep/toolkit/datasets/shards/shard_writer.h"
#include "lockstep/toolkit/datasets/shards/tar_shards.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"
#include "tests/soon.h"

namespace lockstep::datasets::fetched_shards_test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using test::await_file;
using test::fault_of;

void write_remote(const fs::path& folder, std::size_t shards) {
  fs::create_directories(folder);
  ShardWriter writer(folder / "train", {.samples = 10});
  for (std::size_t i = 0; i < 10 * shards; ++i)
    writer.write(std::to_string(i), {{"txt", std::to_string(i)}});
  writer.finish();
}

// An index of version 1 with one sample of this key.
void make_first_version(const fs::path& path, const std::string& key) {
  const std::uint64_t bytes = ShardIndex(path)->shard().size;
  const std::string name = key + ".txt";
  ByteWriter out(128);
  out.raw("LOCKSTEP SHARD 1").number(std::uint64_t{0}).number(bytes).number(std::int64_t{0});
  out.number(std::uint64_t{1}).number(std::uint64_t{1}).number(std::uint64_t{name.size()});
  out.number(std::uint64_t{0}).number(std::uint64_t{1});  // First parts.
  out.number(std::uint64_t{512}).number(std::uint64_t{1}).number(std::uint64_t{name.size()});
  out.raw(name);
  std::string index = out.take();
  constexpr std::size_t digested_at = shard_index_digest_at + sizeof(std::uint64_t);
  const std::uint64_t digest = hash_of_elements(std::string_view(index).substr(digested_at));
  std::memcpy(index.data() + shard_index_digest_at, &digest, sizeof digest);
  std::ofstream(path, std::ios::binary) << index;
  ASSERT_FALSE(ShardIndex(path)->is_for({}));
}

std::string write_script(const fs::path& path, const std::string& body) {
  std::ofstream(path) << "#!/bin/sh\n" << body;
  fs::permissions(path, fs::perms::owner_all);
  return path;
}

class FetchedShards : public testing::Test {
 protected:
  FetchedShards() { write_remote(path("remote"), 6); }

  std::string path(const std::string& name) const { return folder_.path() / name; }

  TarShardsOptions options(const std::string& fetch) const {
    return {.fetch = fetch,
            .cache = path("cache"),
            .cache_bytes = 1 << 20,
            .fetch_attempts = 3,
            .fetch_pause = 10ms,
            .fetch_timeout = 20s};
  }

  TarShardsOptions copying() const {
    return options(
        write_script(path("copy"), "echo \"$1\" >> " + path("log") + "; cp \"$1\" \"$2\"") +
        " {url} {path}");
  }

  std::string sleeping() const {
    return write_script(path("sleep"), "sleep 600 & echo $! > " + path("pid") + "; wait") +
           " {url} {path}";
  }

  TarShards slow_shards() const {
    TarShards({urls()}, copying());
    for (const auto& entry : fs::directory_iterator(path("cache")))
      if (entry.path().extension() == ".tar") fs::remove(entry.path());
    return TarShards({urls()}, options(sleeping()));
  }

  pid_t wait_for_sleeper() const {
    pid_t pid = 0;
    while (!(std::ifstream(path("pid")) >> pid)) std::this_thread::sleep_for(1ms);
    return pid;
  }

  std::string urls() const { return path("remote/train-{000000..000005}.tar"); }

  std::size_t fetches() const {
    std::ifstream log(path("log"));
    std::size_t lines = 0;
    for (std::string line; std::getline(log, line);) ++lines;
    return lines;
  }

  std::size_t cached() const {
    std::size_t shards = 0;
    for (const auto& entry : fs::directory_iterator(path("cache")))
      if (entry.path().extension() == ".tar") ++shards;
    return shards;
  }

 private:
  const test::ScratchDirectory folder_;
};

TEST_F(FetchedShards, ReportHowManyIndexesAreThere) {
  std::vector<std::pair<std::size_t, std::size_t>> told;
  TarShardsOptions options = copying();
  options.at_index = [&](std::size_t done, std::size_t all) { told.emplace_back(done, all); };
  for (int start = 0; start < 2; ++start) {
    told.clear();
    const TarShards shards({urls()}, options);
    ASSERT_EQ(told.size(), 6U);
    for (std::size_t i = 0; i < 6; ++i) EXPECT_EQ(told[i], std::pair(i + 1, std::size_t{6}));
  }
}

TEST_F(FetchedShards, RefuseACacheThatDoesNotFitOnTheDisk) {
  TarShardsOptions options = copying();
  options.cache_bytes = std::uint64_t{1} << 60;
  std::string text;
  EXPECT_EQ(fault_of([&] { TarShards({urls()}, options); }, &text), Fault::system);
  EXPECT_NE(text.find("TarShardsOptions::cache_bytes is 1152921504606846976, and the disk of"),
            text.npos)
      << text;
  options.cache_bytes = std::nullopt;
  EXPECT_EQ(TarShards({urls()}, options).size(), 60U);
}

TEST_F(FetchedShards, CountAllOfTheCacheWhileOthersFetchIntoIt) {
  TarShardsOptions options = copying();
  TarShards({urls()}, options);
  std::ofstream(path("cache/large.tar")).close();
  constexpr std::uint64_t large = std::uint64_t{1} << 43;
  fs::resize_file(path("cache/large.tar"), large);
  options.cache_bytes = large;
  std::atomic<bool> ends = false;
  std::thread other([&] {
    std::error_code gone;
    while (!ends) {
      for (const char* name : {"a", "b", "c", "d"}) {
        fs::create_directories(path("cache/parts/") + name, gone);
        std::ofstream(path("cache/parts/") + name + "/1-0") << "half";
      }
      for (const char* name : {"a", "b", "c", "d"})
        fs::remove_all(path("cache/parts/") + name, gone);
    }
  });
  for (int start = 0; start < 100; ++start)
    EXPECT_NO_THROW(TarShards({urls()}, options)) << "start " << start;
  ends = true;
  other.join();
}

TEST_F(FetchedShards, AreFetchedOnceAndReadFromTheCache) {
  const TarShards shards({urls()}, copying());
  EXPECT_EQ(shards.size(), 60U);
  for (std::size_t i = 0; i < shards.size(); ++i)
    EXPECT_EQ(shards.sample(i).parts.at("txt"), std::to_string(i));
  EXPECT_EQ(fetches(), 6U);
  const TarShards again({urls()}, copying());
  EXPECT_EQ(again.sample(59).parts.at("txt"), "59");
  EXPECT_EQ(fetches(), 6U);
}

TEST_F(FetchedShards, NeedNotBeFetchedForTheirIndexes) {
  TarShardsOptions options = copying();
  options.fetch_indexes = true;
  const TarShards shards({urls()}, options);
  EXPECT_EQ(shards.size(), 60U);
  EXPECT_EQ(cached(), 0U);
  EXPECT_EQ(shards.sample(25).parts.at("txt"), "25");
  EXPECT_EQ(cached(), 1U);
}

TEST_F(FetchedShards, MakeTheirIndexesIfTheFetchedOnesAreOfAnEarlierVersion) {
  for (const auto& entry : fs::directory_iterator(path("remote")))
    if (entry.path().extension() == ".index") make_first_version(entry.path(), "other");
  TarShardsOptions options = copying();
  options.fetch_indexes = true;
  std::vector<std::string> warnings;
  set_log_sink([&](LogLevel, std::string_view line) { warnings.emplace_back(line); });
  const TarShards shards({urls()}, options);
  set_log_sink({});
  ASSERT_EQ(warnings.size(), 1U);
  EXPECT_NE(warnings[0].find("train-000000.tar.index was made by an earlier version"),
            std::string::npos)
      << warnings[0];
  EXPECT_EQ(shards.size(), 60U);
  for (const std::size_t i : {0, 25, 59})
    EXPECT_EQ(shards.sample(i).parts.at("txt"), std::to_string(i));
  EXPECT_EQ(fetches(), 12U);
}

TEST_F(FetchedShards, ReplaceIndexesOfAnEarlierVersionInTheCache) {
  TarShards({urls()}, copying());
  for (const auto& entry : fs::directory_iterator(path("cache")))
    if (entry.path().extension() == ".index") make_first_version(entry.path(), "other");
  const TarShards shards({urls()}, copying());
  EXPECT_EQ(shards.key(59), "59");
  EXPECT_EQ(shards.sample(59).parts.at("txt"), "59");
  EXPECT_EQ(fetches(), 6U);
}

TEST_F(FetchedShards, LeaveTheCacheWhenTheyWereNotUsedForLongest) {
  TarShardsOptions options = copying();
  const std::uint64_t size = fs::file_size(path("remote/train-000000.tar"));
  options.cache_bytes = 4 * size + 8 * 1024;  // Six indexes take less than 8 KB.
  const TarShards shards({urls()}, options);
  EXPECT_LE(cached(), 4U);
  for (std::size_t shard = 0; shard < 4; ++shard) shards.sample(10 * shard);
  const std::size_t before = fetches();
  shards.sample(0);
  EXPECT_EQ(fetches(), before);
  shards.sample(50);  // In place of shard 1.
  shards.sample(0);
  EXPECT_EQ(fetches(), before + 1);
  EXPECT_EQ(shards.sample(15).parts.at("txt"), "15");
  EXPECT_EQ(fetches(), before + 2);
}

TEST_F(FetchedShards, LeaveTheCacheByTheirUseWhateverTimeTheCommandGivesThem) {
  // As copies of old files.
  TarShardsOptions dated =
      options(write_script(path("dated"), "echo x >> " + path("log") +
                                              "; cp \"$1\" \"$2\"; n=${1%.tar}; n=${n#\"${n%?}\"}; "
                                              "touch -d 201$((9 - n))-01-01 \"$2\"") +
              " {url} {path}");
  dated.cache_bytes = 4 * fs::file_size(path("remote/train-000000.tar")) + 8 * 1024;
  const TarShards shards({urls()}, dated);
  EXPECT_EQ(fetches(), 6U);
  for (std::size_t shard = 2; shard < 6; ++shard) shards.sample(10 * shard);
  EXPECT_EQ(fetches(), 6U);
}

TEST_F(FetchedShards, AreFetchedAheadInTheOrderOfTheEpoch) {
  TarShardsOptions options = copying();
  options.fetch_indexes = true;
  const TarShards shards({urls()}, options);
  shards.order(2).at_pass({3, 0, 2, 5, 1, 4});  // As a DistributedSampler does.
  shards.will_read(std::vector<std::size_t>{33, 1, 34});
  const Deadline deadline = in(20s);
  while (cached() < 4 && Clock::now() < deadline) std::this_thread::sleep_for(1ms);
  for (const std::size_t index : {0, 20, 30, 50}) shards.sample(index);
  EXPECT_EQ(fetches(), 6U + 4U);  // Six indexes; shards 3 and 0, and the two after them.
}

TEST_F(FetchedShards, RequireACacheForTwoBlocks) {
  TarShardsOptions options = copying();
  options.cache_bytes = 5 * fs::file_size(path("remote/train-000000.tar"));
  const TarShards shards({urls()}, options);
  shards.order(2);
  std::string text;
  EXPECT_EQ(fault_of([&] { shards.order(3); }, &text), Fault::misuse);
  EXPECT_NE(text.find("two blocks of 3 shards"), text.npos) << text;
  options.cache_bytes = 1000;
  options.cache = path("small");
  EXPECT_EQ(fault_of([&] { TarShards({urls()}, options); }, &text), Fault::misuse);
  EXPECT_NE(text.find("does not fit into the cache of 1000"), text.npos) << text;
}

// Otherwise each would wait for others' space.
TEST_F(FetchedShards, DoNotWaitForCacheSpaceWithSeveralReaders) {
  TarShardsOptions options = copying();
  options.cache_bytes = 2 * fs::file_size(path("remote/train-000000.tar"));
  const auto begin = Clock::now();
  std::vector<std::jthread> readers;
  for (std::size_t reader = 0; reader < 3; ++reader)
    readers.emplace_back([&, reader] {
      const TarShards shards({urls()}, options);
      for (std::size_t i = 0; i < 6; ++i) {
        const std::size_t sample = 10 * ((i + 2 * reader) % 6);
        EXPECT_EQ(shards.sample(sample).parts.at("txt"), std::to_string(sample));
      }
    });
  readers.clear();
  EXPECT_LT(Clock::now() - begin, 15s) << "a wait for room ends after 30 s";
}

TEST_F(FetchedShards, ThatWereDamagedInTheCacheAreFetchedAgain) {
  const TarShards first({urls()}, copying());
  const std::size_t before = fetches();
  for (const auto& entry : fs::directory_iterator(path("cache")))
    if (entry.path().filename().string().starts_with("train-000002") &&
        entry.path().extension() == ".tar")
      fs::resize_file(entry.path(), 700);
  const TarShards second({urls()}, copying());
  EXPECT_EQ(second.sample(25).parts.at("txt"), "25");
  EXPECT_EQ(fetches(), before + 1);
}

TEST_F(FetchedShards, AreTriedAgainAfterAFailure) {
  const auto flaky = write_script(
      path("flaky"), "n=$(cat " + path("n") + " 2>/dev/null || echo 0); n=$((n + 1)); echo $n > " +
                         path("n") + "; case $((n % 3)) in 1) echo no network >&2; exit 7;; " +
                         "2) head -c 700 \"$1\" > \"$2\";; *) cp \"$1\" \"$2\";; esac");
  const TarShards shards({urls()}, options(flaky + " {url} {path}"));
  EXPECT_EQ(shards.sample(59).parts.at("txt"), "59");
}

TEST_F(FetchedShards, EndInAnErrorWithTheOutputOfTheCommand) {
  const auto failing = write_script(
      path("failing"), "echo \"$2\" >> " + path("log") + "; echo access denied >&2; exit 7");
  std::string text;
  EXPECT_EQ(fault_of([&] { TarShards({urls()}, options(failing + " {url} {path}")); }, &text),
            Fault::system);
  for (const char* part : {"train-000000.tar failed 3 times", "exit code 7", "access denied"})
    EXPECT_NE(text.find(part), text.npos) << text;
  std::ifstream log(path("log"));
  std::set<std::string> files;
  for (std::string file; std::getline(log, file);) files.insert(file);
  EXPECT_EQ(files.size(), 3U);
  EXPECT_EQ(fault_of([&] { TarShards({urls()}, options("/no/such/program {url} {path}")); }, &text),
            Fault::system);
  EXPECT_NE(text.find("/no/such/program: No such file"), text.npos) << text;
  EXPECT_TRUE(fs::is_empty(path("cache/parts")));
}

TEST_F(FetchedShards, HaveATimeLimit) {
  TarShardsOptions slow = options(sleeping());
  slow.fetch_attempts = 1;
  slow.fetch_timeout = 100ms;
  const auto started = Clock::now();
  EXPECT_EQ(fault_of([&] { TarShards({urls()}, slow); }), Fault::timeout);
  EXPECT_LT(seconds_since(started), 20);
}

TEST_F(FetchedShards, EndTheCommandThatFetchesAhead) {
  pid_t sleeper = 0;
  const auto started = Clock::now();
  {
    const TarShards shards = slow_shards();
    shards.will_read(std::vector<std::size_t>{0});
    sleeper = wait_for_sleeper();
  }
  EXPECT_LT(seconds_since(started), 15);
  const auto runs = [&] {
    const auto stat = process_stat(sleeper);
    return stat && stat->state != 'Z';
  };
  for (const Deadline deadline = in(20s); runs() && Clock::now() < deadline;)
    std::this_thread::sleep_for(1ms);
  EXPECT_FALSE(runs());
}

TEST_F(FetchedShards, AreDestroyedInAForkedChild) {
  auto shards = std::make_unique<TarShards>(std::vector{urls()}, copying());
  shards->will_read(std::vector<std::size_t>{0});
  std::this_thread::sleep_for(50ms);  // The idle thread waits.
  const pid_t child = ::fork();
  if (child == 0) {
    shards->will_read(std::vector<std::size_t>{1});
    shards.reset();
    ::_exit(0);
  }
  int status = -1;
  for (const Deadline deadline = in(20s);
       ::waitpid(child, &status, WNOHANG) == 0 && Clock::now() < deadline;)
    std::this_thread::sleep_for(1ms);
  EXPECT_EQ(status, 0);
  if (status != 0) ::kill(child, SIGKILL);
}

class SamplesOfShards : public BatchDataset {
 public:
  explicit SamplesOfShards(TarShards shards) : shards_(std::move(shards)) {}

  std::size_t size() const override { return shards_.size(); }
  SampleSpec data_spec() const override { return {}; }
  SampleSpec target_spec() const override { return {}; }
  void fill(const BatchRows& rows) const override {
    for (const std::size_t index : rows.indices) shards_.sample(index);
  }
  std::string sample_name(std::size_t index) const override { return shards_.sample_name(index); }

 private:
  const TarShards shards_;
};

TEST_F(FetchedShards, AreNotWaitedForByABatchThatIsCancelled) {
  const SamplesOfShards dataset(slow_shards());
  BatchFiller filler(dataset, 0, 2);
  PendingBatch batch{.data = at::zeros({1}), .target = at::zeros({1}), .indices = {0}};
  PendingBatch same = batch;
  const auto started = Clock::now();
  filler.start(batch);
  filler.start(same);
  wait_for_sleeper();
  filler.cancel();
  EXPECT_LT(seconds_since(started), 15);
}

TEST_F(FetchedShards, AreRefusedIfTheyWereChangedUnderTheirIndex) {
  const TarShards shards({urls()}, copying());
  for (const auto& entry : fs::directory_iterator(path("cache")))
    if (entry.path().extension() == ".tar") fs::remove(entry.path());
  ShardWriter writer(path("remote/train"), {.replace = true});
  writer.write("other", {{"txt", "other"}});
  writer.finish();
  std::string text;
  EXPECT_EQ(fault_of([&] { shards.sample(0); }, &text), Fault::corrupt);
  EXPECT_NE(text.find("remote/train-000000.tar: the shard was changed since its index was made"),
            text.npos)
      << text;
  EXPECT_EQ(shards.sample(10).parts.at("txt"), "10");
}

TEST_F(FetchedShards, LeaveNothingHalfWrittenOnAFullDisk) {
  TarShardsOptions options = copying();
  options.fetch_attempts = 1;
  // `cp` reports the limit like a full disk.
  options.fetch = write_script(path("full"), "ulimit -f 4; cp \"$1\" \"$2\"") + " {url} {path}";
  std::string text;
  EXPECT_EQ(fault_of([&] { TarShards({urls()}, options); }, &text), Fault::system);
  EXPECT_EQ(cached(), 0U);
  EXPECT_TRUE(fs::is_empty(path("cache/parts")));
  EXPECT_EQ(TarShards({urls()}, copying()).size(), 60U);  // Nothing is lost.
}

TEST(FetchCommand, IsDividedIntoWordsBeforeItIsFilledIn) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(FetchCommand("aws s3 cp  {url} {path}", false, 1s).words("s3://a b/{path}'", "/p q"),
            (Words{"aws", "s3", "cp", "s3://a b/{path}'", "/p q"}));
  EXPECT_EQ(FetchCommand("curl {url} > {path}", true, 1s).words("a'b", "/p q"),
            (Words{"/bin/sh", "-c", "curl 'a'\\''b' > '/p q'"}));
  for (const char* text : {"aws s3 cp {url}", "cp /data/train.tar {path}"})
    EXPECT_EQ(fault_of([&] { FetchCommand(text, false, 1s); }), Fault::misuse) << text;
  EXPECT_EQ(fault_of([] { FetchCommand("cp {url} {path}", false, 0s); }), Fault::misuse);
}

TEST(FetchPolicy, HasPausesThatGrowUpToAMinute) {
  FetchPolicy policy{.pause = 1s};
  EXPECT_EQ(policy.pause_after(1), 1s);
  EXPECT_EQ(policy.pause_after(4), 8s);
  EXPECT_EQ(policy.pause_after(100), 60s);
  policy.pause = 90s;
  EXPECT_EQ(policy.pause_after(2), 90s);
}

TEST_F(FetchedShards, AreRefusedWithAttemptsOrPausesThatCannotBe) {
  TarShardsOptions endless = copying(), hasty = copying();
  endless.fetch_attempts = 1001;
  hasty.fetch_pause = -1ms;
  EXPECT_EQ(fault_of([&] { TarShards({urls()}, endless); }), Fault::misuse);
  EXPECT_EQ(fault_of([&] { TarShards({urls()}, hasty); }), Fault::misuse);
}

TEST_F(FetchedShards, MayBeFetchedByACommandThatPrintsMoreThanAPipeHolds) {
  TarShardsOptions loud = options(
      write_script(path("loud"), "head -c 150000 /dev/zero && cp \"$1\" \"$2\"") + " {url} {path}");
  loud.fetch_attempts = 1;
  EXPECT_EQ(TarShards({path("remote/train-000000.tar")}, loud).size(), 10U);
}

TEST_F(FetchedShards, MayBeFetchedByAShell) {
  TarShardsOptions options = copying();
  options.fetch = "cat {url} > {path} && true";
  options.fetch_by_shell = true;
  EXPECT_EQ(TarShards({urls()}, options).sample(7).parts.at("txt"), "7");
}

// --- Several ranks -------------------------------------------------------------------------------

TarShardsOptions of_ranks(const fs::path& scratch) {
  return {.fetch = (scratch / "copy").string() + " {url} {path}",
          .cache = scratch / "cache",
          .fetch_pause = 10ms};
}

const test::Ranks read_all("each shard is fetched once for all ranks", [](const test::Rank& rank) {
  if (rank.rank == 0) {
    write_remote(rank.scratch / "remote", 6);
    write_script(rank.scratch / "copy",
                 "echo x >> " + (rank.scratch / "log").string() + "; sleep 0.05; cp \"$1\" \"$2\"");
    std::ofstream{rank.scratch / "ready"};
  }
  await_file(rank.scratch / "ready");
  const TarShards shards({(rank.scratch / "remote").string() + "/train-{000000..000005}.tar"},
                         of_ranks(rank.scratch));
  for (std::size_t i = 0; i < shards.size(); ++i)
    EXPECT_EQ(shards.sample(i).parts.at("txt"), std::to_string(i));
  EXPECT_EQ(fs::file_size(rank.scratch / "log"), 6U * 2U);
});

TEST(FetchedShardsOfRanks, AreFetchedOnceForAHost) {
  EXPECT_TRUE(test::all_succeeded(read_all.run(3)));
}

const test::Ranks over_damage("start over damaged indexes", [](const test::Rank& rank) {
  constexpr int starts = 5;
  const auto start = [&](int number) {
    const TarShards shards({(rank.scratch / "remote").string() + "/train-{000000..000005}.tar"},
                           {.fetch = "cp {url} {path}",
                            .cache = rank.scratch / ("cache" + std::to_string(number)),
                            .fetch_indexes = true});
    EXPECT_EQ(shards.size(), 60U);
  };
  if (rank.rank == 0) {
    write_remote(rank.scratch / "remote", 6);
    int damaged = 0;
    for (int number = 0; number < starts; ++number) {
      start(number);
      for (const auto& entry :
           fs::directory_iterator(rank.scratch / ("cache" + std::to_string(number))))
        if (entry.path().extension() == ".index") {
          std::fstream(entry.path(), std::ios::in | std::ios::out | std::ios::binary).seekp(70)
              << "damage";
          ++damaged;
        }
    }
    EXPECT_EQ(damaged, 6 * starts);
    std::ofstream{rank.scratch / "ready"};
  }
  await_file(rank.scratch / "ready");
  for (int number = 0; number < starts; ++number) start(number);
});

TEST(FetchedShardsOfRanks, StartTogetherOverDamagedIndexes) {
  EXPECT_TRUE(test::all_succeeded(over_damage.run(3)));
}

const test::Ranks kill_fetcher("the fetching rank is killed", [](const test::Rank& rank) {
  const fs::path fetching = rank.scratch / "fetching";
  if (rank.rank == 0) {
    write_remote(rank.scratch / "remote", 1);
    write_script(
        rank.scratch / "copy",
        "if mkdir " + fetching.string() +
            " 2>/dev/null; then head -c 600 \"$1\" > \"$2\"; sleep 3; fi; cp \"$1\" \"$2\"");
    std::ofstream{rank.scratch / "ready"};
    std::thread([&] {
      await_file(fetching);
      std::this_thread::sleep_for(50ms);
      ::raise(SIGKILL);
    }).detach();
  } else {
    await_file(fetching);
  }
  const TarShards shards({(rank.scratch / "remote").string() + "/train-000000.tar"},
                         of_ranks(rank.scratch));
  EXPECT_EQ(shards.sample(9).parts.at("txt"), "9");
  std::this_thread::sleep_for(4s);  // The command that outlived rank 0 exits without an effect.
  EXPECT_EQ(shards.sample(3).parts.at("txt"), "3");
  EXPECT_EQ(
      TarShards({(rank.scratch / "remote").string() + "/train-000000.tar"}, of_ranks(rank.scratch))
          .size(),
      10U);
});

TEST(FetchedShardsOfRanks, AreTakenOverFromAKilledRank) {
  const auto exits = kill_fetcher.run(2);
  EXPECT_EQ(exits[0].signal, SIGKILL);
  EXPECT_EQ(exits[1].code, 0) << exits[1].output;
}

}  // namespace
}  // namespace lockstep::datasets::fetched_shards_test
