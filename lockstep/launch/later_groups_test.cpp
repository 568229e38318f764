// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/later_groups.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "lockstep/base/time.h"

namespace lockstep::launch::later_groups_test {
namespace {

class Rank {
 public:
  Rank(JobControlBlock& page, int slot, std::uint64_t sequence = 5) : pid_(::fork()) {
    if (pid_ == 0) {
      page.enter(slot);
      page.activity(slot).collective.enter(pack_group_name("world~2"), Operation::all_reduce,
                                           sequence, 1);
      while (true) ::pause();
    }
    const Deadline deadline = in(std::chrono::seconds(20));
    while (page.activity(slot).collective.sequence() == 0 && Clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ~Rank() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  pid_t pid() const { return pid_; }

 private:
  const pid_t pid_;
};

FileDescriptor copy_of(const JobControlBlock& page) {
  return FileDescriptor(::dup(page.descriptor()));
}

// Rank 1 has died; its replacement has joined last.
TEST(LaterGroups, ShowRanksByTheirNumbersInTheJob) {
  JobControlBlock page = JobControlBlock::create(3, "job");
  JobControlBlock other = JobControlBlock::create(1, "job");
  const Rank zero(page, 0);
  const Rank two(page, 1);
  const Rank waits(other, 0);
  LaterGroups groups;
  groups.add(copy_of(page));
  groups.add(copy_of(page));
  const std::vector<pid_t> pids{zero.pid(), waits.pid(), two.pid()};
  const auto shown = groups.status(2, pids, 4);
  ASSERT_TRUE(shown);
  EXPECT_EQ(shown->rank, 6);
  EXPECT_EQ(shown->state, "waiting");
  EXPECT_EQ(shown->group_rank, 1);
  EXPECT_EQ(shown->group_size, 3);
  EXPECT_TRUE(shown->waits_for.empty()) << "the slot's rank in the job is unknown";
  EXPECT_FALSE(groups.status(1, pids, 4));
  const Rank joined(page, 2, 4);
  const std::vector<pid_t> all{zero.pid(), joined.pid(), two.pid()};
  EXPECT_EQ(groups.status(1, all, 4)->rank, 5);
  EXPECT_EQ(groups.status(2, all, 4)->waits_for, std::vector{5});
}

TEST(LaterGroups, ShowTheNewestGroupInWhichARankLives) {
  JobControlBlock first = JobControlBlock::create(2, "job");
  JobControlBlock second = JobControlBlock::create(1, "job");
  LaterGroups groups;
  first.enter(1);
  groups.add(copy_of(first));
  groups.add(copy_of(second));
  const std::vector<pid_t> pids{::getpid()};
  EXPECT_EQ(groups.status(0, pids, 0)->group_size, 2) << "it is not in the second one yet";
  first.leave(1, JobControlBlock::Phase::finished);
  second.enter(0);
  EXPECT_EQ(groups.status(0, pids, 0)->group_size, 1);
  second.leave(0, JobControlBlock::Phase::finished);
}

TEST(LaterGroups, DropOldGroups) {
  JobControlBlock first = JobControlBlock::create(1, "job");
  first.enter(0);
  LaterGroups groups;
  groups.add(copy_of(first));
  for (int more = 0; more < 3; ++more) groups.add(copy_of(JobControlBlock::create(1, "job")));
  EXPECT_FALSE(groups.status(0, {::getpid()}, 0));
  first.leave(0, JobControlBlock::Phase::finished);
}

}  // namespace
}  // namespace lockstep::launch::later_groups_test
