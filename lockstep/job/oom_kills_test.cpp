// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/oom_kills.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/memory.h"
#include "lockstep/base/time.h"
#include "lockstep/job/job_control_block.h"
#include "tests/ranks.h"

namespace lockstep::job::oom_kills_test {
namespace {

namespace fs = std::filesystem;

class Root {
 public:
  Root& with(const std::string& file, const std::string& content) {
    fs::create_directories((scratch_.path() / file).parent_path());
    std::ofstream(scratch_.path() / file) << content;
    return *this;
  }
  std::optional<std::uint64_t> kills() const { return oom_kills(scratch_.path()); }

 private:
  test::ScratchDirectory scratch_;
};

TEST(OomKills, AreThoseOfTheUnifiedGroup) {
  Root root;
  root.with("proc/self/cgroup", "0::/a/b\n")
      .with("sys/fs/cgroup/a/b/memory.events", "low 0\nhigh 1\nmax 2\noom 3\noom_kill 4\n")
      .with("proc/vmstat", "oom_kill 99\n");
  EXPECT_EQ(root.kills(), 4U);
}

TEST(OomKills, AreThoseOfTheMemoryControllersGroupWhereThereIsOne) {
  Root root;
  root.with("proc/self/cgroup", "5:cpu,memory:/job\n0::/\n")
      .with("sys/fs/cgroup/memory/job/memory.oom_control",
            "oom_kill_disable 0\nunder_oom 0\noom_kill 7\n")
      .with("proc/vmstat", "oom_kill 99\n");
  EXPECT_EQ(root.kills(), 7U);
}

TEST(OomKills, AreThoseOfTheNearestGroupThatIsSeenHere) {
  Root root;
  root.with("proc/self/cgroup", "0::/outside/of/the/container\n")
      .with("sys/fs/cgroup/memory.events", "oom_kill 2\n");
  EXPECT_EQ(root.kills(), 2U);
}

TEST(OomKills, AreThoseOfTheHostWhereNoGroupCounts) {
  Root root;
  root.with("proc/self/cgroup", "3:cpu:/\n0::/\n").with("proc/vmstat", "nr_pages 5\noom_kill 3\n");
  EXPECT_EQ(root.kills(), 3U);
}

TEST(OomKills, AreUnknownWhereNobodyCounts) {
  Root root;
  EXPECT_FALSE(root.kills());
  root.with("proc/self/cgroup", "nonsense\n0:\n").with("proc/vmstat", "nr_pages 5\n");
  EXPECT_FALSE(root.kills());
}

// --- Their attribution to deaths -----------------------------------------------------------------

using std::chrono::seconds;

TEST(OomKills, AKillIsOnlyTheCauseOfTheNextDeath) {
  const Clock::time_point start = Clock::now();
  job::OomKills kills;
  kills.begin(5);
  EXPECT_EQ(kills.judge(5, start), false);
  EXPECT_EQ(kills.judge(6, start + seconds(10)), true);
  EXPECT_EQ(kills.judge(6, start + seconds(10)), false) << "SIGKILL by a user, just afterwards";
  EXPECT_EQ(kills.judge(6, start + seconds(20)), false);
  EXPECT_EQ(kills.judge(7, start + seconds(30)), true);
}

TEST(OomKills, SimultaneousKillsAreTheCausesOfAsManyDeaths) {
  const Clock::time_point start = Clock::now();
  job::OomKills kills;
  kills.begin(0);
  EXPECT_EQ(kills.judge(2, start), true);
  EXPECT_EQ(kills.judge(2, start + seconds(1)), true);
  EXPECT_EQ(kills.judge(2, start + seconds(1)), false);
}

TEST(OomKills, AKillOfAProcessThatIsNoRankIsNotTheCauseOfALaterDeath) {
  const Clock::time_point start = Clock::now();
  job::OomKills kills;
  kills.begin(0);
  EXPECT_EQ(kills.judge(3, start), true);
  EXPECT_EQ(kills.judge(3, start + seconds(3)), false);
}

TEST(OomKills, AreUnknownCausesWithoutACount) {
  job::OomKills kills;
  kills.begin({});
  EXPECT_EQ(kills.judge(1, Clock::now()), std::nullopt);
  kills.begin(0);
  EXPECT_EQ(kills.judge({}, Clock::now()), std::nullopt);
  EXPECT_EQ(kills.judge(1, Clock::now()), true);
}

TEST(OomKills, AreKnownOnThisHost) { EXPECT_TRUE(oom_kills()); }

// --- A real one ----------------------------------------------------------------------------------

constexpr std::size_t limit = 64 << 20;

void write(const fs::path& file, const std::string& text) { std::ofstream(file) << text; }

// A memory cgroup below this process's own, removed by the destructor.
class MemoryGroup {
 public:
  MemoryGroup() {
    std::ifstream in("/proc/self/cgroup");
    for (std::string line; std::getline(in, line);) {
      if (const auto at = line.find(":memory:/"); at != line.npos)
        make(fs::path("/sys/fs/cgroup/memory") / line.substr(at + 9), "memory.limit_in_bytes");
      else if (line.starts_with("0::/") && path_.empty())
        make(fs::path("/sys/fs/cgroup") / line.substr(4), "memory.max");
    }
  }
  ~MemoryGroup() {
    if (!path_.empty()) ::rmdir(path_.c_str());
  }
  MemoryGroup(const MemoryGroup&) = delete;
  MemoryGroup& operator=(const MemoryGroup&) = delete;

  explicit operator bool() const { return !path_.empty(); }
  void join() const { write(path_ / "cgroup.procs", std::to_string(::getpid())); }

 private:
  void make(const fs::path& parent, const char* limit_file) {
    const fs::path path = parent / ("lockstep-test-" + std::to_string(::getpid()));
    if (::mkdir(path.c_str(), 0700) != 0) return;
    write(path / limit_file, std::to_string(limit));
    std::size_t set = 0;
    std::ifstream(path / limit_file) >> set;
    if (set == limit)
      path_ = path;
    else
      ::rmdir(path.c_str());
  }

  fs::path path_;
};

// Runs a rank that allocates `bytes` and ends by SIGKILL. Returns whether the OOM killer is the
// detected cause: 0 no, 1 yes, 2 unknown, 3 not killed.
int judge_rank_that_takes(std::size_t bytes, JobControlBlock& page, int slot) {
  const pid_t rank = ::fork();
  if (rank == 0) {
    write("/proc/self/oom_score_adj", "1000");
    page.enter(slot);
    auto* memory = static_cast<volatile char*>(
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    for (std::size_t i = 0; i < bytes; i += 4096) memory[i] = 1;
    ::raise(SIGKILL);
  }
  const Deadline patience = in(std::chrono::seconds(20));
  while (!page.lost(slot) && Clock::now() < patience)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const Failure failure = page.examine(slot);
  ::kill(rank, SIGKILL);
  ::waitpid(rank, nullptr, 0);
  if (failure.signal != SIGKILL) return 3;
  if (page.oom_killed(slot, rank) != failure.oom) return 4;  // It is judged once.
  return !failure.oom ? 2 : *failure.oom ? 1 : 0;
}

// Ranks of a job that end one after another, in the group. Returns the digits of their judgements.
int judged(const MemoryGroup& group, const std::vector<std::size_t>& bytes) {
  const pid_t judge = ::fork();  // This process has one thread.
  if (judge == 0) {
    group.join();
    JobControlBlock page = JobControlBlock::create(static_cast<int>(bytes.size()), "job");
    int all = 0;
    for (std::size_t slot = 0; slot < bytes.size(); ++slot)
      all = 10 * all + judge_rank_that_takes(bytes[slot], page, static_cast<int>(slot));
    ::_exit(all);
  }
  int status = 0;
  ::waitpid(judge, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(OomKills, AnOutOfMemoryKillIsDistinguishedFromAnotherKill) {
  const MemoryGroup group;
  if (!group) GTEST_SKIP() << "this user may not make a memory cgroup with a limit";
  EXPECT_EQ(judged(group, {1 << 20}), 0);
  EXPECT_EQ(judged(group, {4 * limit}), 1);
  EXPECT_EQ(judged(group, {4 * limit, 1 << 20}), 10) << "a later kill has another cause";
}

}  // namespace
}  // namespace lockstep::job::oom_kills_test
