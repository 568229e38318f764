// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <unistd.h>

#include <optional>
#include <string>
#include <vector>

#include "lockstep/launch/status.h"
#include "tests/rigs/command.h"
#include "tests/serving_status.h"

namespace lockstep::test::lockstep_status_test {
namespace {

JobStatus example(char first) {
  JobStatus job{.job_id = own_id(first), .program = "./train --epochs \033[2J5"};
  job.host = "node3";
  job.nodes = 2;
  job.attempt = 4;
  job.state = "running";
  job.seconds = 3723.9;
  job.ranks.push_back({.rank = 0, .pid = 4241, .state = "stopped", .step = 811, .last = "outside"});
  job.ranks.push_back({.rank = 1,
                       .pid = 4242,
                       .state = "waiting",
                       .waits_for = {0, 2, 3},
                       .step = 812,
                       .last = "in all_reduce #2431 of group world for 0.1 s",
                       .bound_to = "4-7"});
  return job;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

// ServingStatus's thread may stand still for a second.
Finished answer_to(const std::vector<std::string>& command) {
  Finished done{};
  soon([&] {
    done = run_command(command);
    return !has(done.out, no_answer);
  });
  return done;
}

TEST(LockstepStatus, ShowsWhatEachRankDoesAndAwaits) {
  const ServingStatus agent(example('a'));
  const Finished status = answer_to({LOCKSTEP, "status", own_id('a')});
  EXPECT_EQ(status.code, 0) << status.err;
  EXPECT_TRUE(
      has(status.out, own_id('a').substr(0, 8) + "  node3  0 of 2  4        running  1:02:03"))
      << status.out;
  EXPECT_TRUE(has(status.out, "  rank 0  4241  stopped  step 811             outside\n"))
      << status.out;
  EXPECT_TRUE(
      has(status.out,
          "  rank 1  4242  waiting  step 812  cores 4-7  in all_reduce #2431 of group world "
          "for 0.1 s, waits for 0,2-3\n"))
      << status.out;
  EXPECT_TRUE(has(status.out, "./train --epochs  [2J5\n")) << "a terminal would obey";
}

TEST(LockstepStatus, ShowsAllJobsOrThoseWhoseIdBeginsAsGiven) {
  const ServingStatus a(example('a'));
  const ServingStatus b(example('b'));
  const auto a_id = own_id('a').substr(0, 8);
  const auto b_id = own_id('b').substr(0, 8);
  const std::string all = run_command({LOCKSTEP_STATUS}).out;
  EXPECT_TRUE(has(all, a_id) && has(all, b_id)) << all;
  const std::string one = run_command({LOCKSTEP_STATUS, own_id('b').substr(0, 12)}).out;
  EXPECT_TRUE(!has(one, a_id) && has(one, b_id)) << one;
}

TEST(LockstepStatus, PrintsNoControlCharacterOfAJobInEitherFormat) {
  JobStatus job = example('a');
  job.program = "train \033[2J\n\x7f \xC2\x9B";
  job.host = job.state = job.ranks[0].last = job.ranks[0].state = job.program;
  const ServingStatus agent(job);
  const std::string table = answer_to({LOCKSTEP, "status", own_id('a')}).out;
  EXPECT_TRUE(has(table, "train  [2J   \xC2\xBF")) << table;
  const std::string json = answer_to({LOCKSTEP, "status", "--json", own_id('a')}).out;
  EXPECT_TRUE(has(json, "train \\u001b[2J\\n\\u007f \\u009b")) << json;
  for (const std::string& text : {table, json})
    for (const char* control : {"\033", "\x7f", "\xC2\x9B"})
      EXPECT_FALSE(has(text, control)) << text;
}

TEST(LockstepStatus, PrintsJson) {
  const JobStatus job = example('a');
  const ServingStatus agent(job);
  const Finished status = answer_to({LOCKSTEP_STATUS, "--json", own_id('a')});
  EXPECT_EQ(status.code, 0);
  EXPECT_EQ(status.out, to_json({job}) + "\n");
}

TEST(LockstepStatus, ShowsALauncherThatDoesNotAnswer) {
  const JobStatus job = example('a');
  const StatusService stuck(job.job_id, [job] { return job; });
  const Finished status = run_command({LOCKSTEP_STATUS, own_id('a')});
  EXPECT_EQ(status.code, 0);
  EXPECT_TRUE(has(status.out, "process " + std::to_string(::getpid()) + ", does not answer"))
      << status.out;
}

TEST(LockstepStatus, AJobThatIsNotThereIsExitCode1) {
  for (const char* option : {"--json", "--watch=1"}) {
    const Finished status = run_command({LOCKSTEP_STATUS, "no-such-job", option});
    EXPECT_EQ(status.code, 1);
    EXPECT_EQ(status.out, "");
    EXPECT_EQ(status.err, "lockstep status: no job no-such-job of this user runs on this host\n");
  }
}

// Abstract sockets belong to a network namespace; a new one has none.
TEST(LockstepStatus, NoJobAtAllIsNoFailure) {
  if (run_command({"/usr/bin/unshare", "-rn", "/bin/true"}).code != 0)
    GTEST_SKIP() << "no network of its own may be made here";
  const Finished status = run_command({"/usr/bin/unshare", "-rn", LOCKSTEP_STATUS});
  EXPECT_EQ(status.code, 0);
  EXPECT_EQ(status.out, "no jobs of this user run on this host\n");
  EXPECT_EQ(run_command({"/usr/bin/unshare", "-rn", LOCKSTEP_STATUS, "--json"}).out, "[]\n");
}

TEST(LockstepStatus, WatchesUntilTheJobIsGone) {
  std::optional<ServingStatus> agent(std::in_place, example('a'));
  RunningCommand watch({LOCKSTEP_STATUS, "--watch", "0.1", own_id('a')});
  const auto times = [&] {
    const std::string out = watch.out();
    std::size_t count = 0;
    for (auto at = out.find("JOB "); at != out.npos; at = out.find("JOB ", at + 1)) ++count;
    return count;
  };
  EXPECT_TRUE(soon([&] { return times() >= 3; })) << watch.out();
  agent.reset();
  EXPECT_EQ(watch.wait(), 1);
}

TEST(LockstepStatus, RefusesWhatItDoesNotUnderstandAndHelps) {
  EXPECT_EQ(run_command({LOCKSTEP_STATUS, "--fly"}).code, 64);
  for (const char* seconds : {"0", "nan", "-nan(0x1)", "1e7", "2s"})
    EXPECT_EQ(run_command({LOCKSTEP_STATUS, "no-such-job", "--watch", seconds}).code, 64)
        << seconds;
  EXPECT_EQ(run_command({LOCKSTEP_STATUS, "a", "b"}).code, 64);
  const Finished help = run_command({LOCKSTEP_STATUS, "--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_TRUE(has(help.out, "lockstep status --watch 2"));
  EXPECT_TRUE(has(run_command({LOCKSTEP}).out, "lockstep status"));
}

}  // namespace
}  // namespace lockstep::test::lockstep_status_test
