// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/rank_processes.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/launch/process.h"

namespace lockstep::launch::rank_processes_test {
namespace {

using Step = Termination::Step;
using std::chrono::milliseconds;

constexpr std::chrono::hours hour{1};

TEST(Termination, NothingIsDueBeforeItBegins) {
  const Termination termination;
  EXPECT_FALSE(termination.begun());
  EXPECT_EQ(termination.deadline(), no_deadline);
  EXPECT_EQ(termination.due(Clock::now() + hour), Step::none);
}

TEST(Termination, GoesFromTheTimeToEndOverTheGracePeriodToSigkill) {
  Termination termination;
  termination.begin(2 * hour);
  EXPECT_TRUE(termination.begun());
  EXPECT_EQ(termination.due(Clock::now() + hour), Step::none);
  EXPECT_EQ(termination.due(Clock::now() + 3 * hour), Step::terminate);

  termination.begin_grace(2 * hour);
  EXPECT_EQ(termination.grace(), 2 * hour);
  EXPECT_TRUE(termination.in_grace(Clock::now() + hour));
  EXPECT_FALSE(termination.in_grace(Clock::now() + 3 * hour));
  EXPECT_EQ(termination.due(Clock::now() + hour), Step::none);
  EXPECT_EQ(termination.due(Clock::now() + 3 * hour), Step::kill);

  termination.kill();
  EXPECT_TRUE(termination.killed());
  EXPECT_FALSE(termination.in_grace(Clock::now()));
  EXPECT_EQ(termination.due(Clock::now()), Step::none);
  EXPECT_EQ(termination.due(Clock::now() + time_to_die), Step::abandon);
}

TEST(Termination, ASecondSignalHasItsOwnGracePeriod) {
  Termination termination;
  termination.begin_grace(hour);
  termination.begin_grace(milliseconds(0));
  EXPECT_EQ(termination.grace(), milliseconds(0));
  EXPECT_EQ(termination.due(Clock::now()), Step::kill);
}

TEST(Termination, AnEndlessGracePeriodIsNeverOver) {
  Termination termination;
  termination.begin_grace(milliseconds::max());
  EXPECT_EQ(termination.deadline(), no_deadline);
  EXPECT_EQ(termination.due(Clock::now() + hour), Step::none);
  EXPECT_FALSE(termination.in_grace(Clock::now()));
}

pid_t child(int code) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::setpgid(0, 0);
    ::_exit(code);
  }
  return pid;
}

TEST(RankProcesses, ARankThatEndedCanHaveANewProcess) {
  RankProcesses processes;
  processes.add(child(3));
  std::vector<std::pair<int, int>> ends;
  const auto reap_all = [&] {
    for (const Deadline limit = in(std::chrono::seconds(20));
         processes.running() > 0 && Clock::now() < limit;)
      processes.reap(
          [&](int rank, const siginfo_t& end) { ends.emplace_back(rank, end.si_status); });
  };
  reap_all();
  const pid_t second = child(4);
  processes.replace(0, second);
  EXPECT_EQ(processes.running(), 1);
  EXPECT_EQ(processes.size(), 1);
  EXPECT_EQ(processes.pid(0), second);
  EXPECT_FALSE(processes.has_ended(0));
  EXPECT_THROW(processes.replace(0, 1), Error) << "it runs";
  reap_all();
  EXPECT_EQ(ends, (std::vector<std::pair<int, int>>{{0, 3}, {0, 4}}));
}

}  // namespace
}  // namespace lockstep::launch::rank_processes_test
