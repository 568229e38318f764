// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/launch/run.h"

namespace lockstep::launch::describe_run_test {
namespace {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != text.npos;
}

RunOptions two_ranks() {
  RunOptions options;
  options.program = "/bin/echo";
  options.arguments = {"echo", "two words", "it's", "plain-1.5", ""};
  options.nproc_per_node = 2;
  return options;
}

TEST(DescribeRun, QuotesTheCommandForAShell) {
  EXPECT_TRUE(contains(describe_run(two_ranks()),
                       "2 ranks on this host\n"
                       "command: /bin/echo 'two words' 'it'\\''s' plain-1.5 ''\n"));
}

TEST(DescribeRun, ShowsTheVariablesOfEachRankAndOfAllRanks) {
  ::unsetenv("OMP_NUM_THREADS");
  RunOptions options = two_ranks();
  options.max_restarts = 3;
  options.bind = Binding::none;
  const std::string text = describe_run(options);
  EXPECT_TRUE(contains(text, "rank 0: not bound\n  LOCAL_RANK=0 RANK=0 ROLE_RANK=0\n")) << text;
  EXPECT_TRUE(contains(text, "rank 1: not bound\n  LOCAL_RANK=1 RANK=1 ROLE_RANK=1\n")) << text;
  for (const char* entry : {" WORLD_SIZE=2", "OMP_NUM_THREADS=1", "TORCHELASTIC_MAX_RESTARTS=3",
                            "MASTER_ADDR=127.0.0.1"})
    EXPECT_TRUE(contains(text, entry)) << entry << " in " << text;
  EXPECT_TRUE(
      contains(text, "known when they start: LOCKSTEP_AGENT_FD LOCKSTEP_JOB_ID MASTER_PORT"))
      << text;
  EXPECT_FALSE(contains(text, "log files")) << text;
}

TEST(DescribeRun, ShowsTheMasterPortThatTheUserChose) {
  RunOptions options = two_ranks();
  options.hosts.master_port = 29501;
  EXPECT_TRUE(contains(describe_run(options), "  MASTER_PORT=29501\n"));
}

TEST(DescribeRun, LeavesOutWhatTheLauncherHasItself) {
  ::setenv("ROLE_NAME", "default", 1);
  const std::string text = describe_run(two_ranks());
  ::unsetenv("ROLE_NAME");
  EXPECT_FALSE(contains(text, "ROLE_NAME")) << text;
  EXPECT_TRUE(contains(describe_run(two_ranks()), "ROLE_NAME=default"));
}

TEST(DescribeRun, NamesAWithheldSecretWithoutItsValue) {
  ::setenv("LOCKSTEP_JOB_TOKEN", "AAAABBBBCCCCDDDDEEEEFFFF", 1);
  const std::string text = describe_run(two_ranks());
  ::unsetenv("LOCKSTEP_JOB_TOKEN");
  EXPECT_TRUE(contains(text, "not passed on: LOCKSTEP_JOB_TOKEN\n")) << text;
  EXPECT_FALSE(contains(text, "AAAABBBB")) << text;
}

TEST(DescribeRun, ListsTheVariablesThatHostsAgreeOnLater) {
  RunOptions options = two_ranks();
  options.hosts.least = 2;
  options.hosts.most = 4;
  options.hosts.endpoint = "node0:29400";
  const std::string text = describe_run(options);
  EXPECT_TRUE(contains(text, "2 ranks on this host, one of 2 to 4 that meet at node0:29400\n"));
  EXPECT_TRUE(contains(text, "local rank 1: ")) << text;
  const auto later = text.find("known when they start:");
  ASSERT_NE(later, text.npos);
  for (const char* name : {" RANK", " WORLD_SIZE", " MASTER_ADDR", " GROUP_RANK", "LOCKSTEP_STORE"})
    EXPECT_TRUE(contains(text.substr(later), name)) << name << " in " << text;

  options.hosts.least = options.hosts.most = 2;
  options.hosts.node_rank = 1;
  const std::string fixed = describe_run(options);
  EXPECT_TRUE(contains(fixed, "2 ranks on this host, number 1 of 2 that meet")) << fixed;
  EXPECT_TRUE(contains(fixed, "  GROUP_RANK=1\n  GROUP_WORLD_SIZE=2\n")) << fixed;
}

TEST(DescribeRun, ListsTheLogFiles) {
  RunOptions options = two_ranks();
  options.log.directory = "my logs";
  options.log.tee.all = Streams::out;
  options.log.redirects.of_local_rank = {{1, Streams::both}};
  EXPECT_TRUE(contains(describe_run(options),
                       "log files, in 'my logs'/JOB_RANDOM/attempt_0:\n"
                       "  0/stdout.log, and shown here\n"
                       "  1/stdout.log, and shown here\n"
                       "  1/stderr.log\n"));
}

TEST(DescribeRun, RefusesWhatRunWould) {
  EXPECT_THROW(describe_run({.program = "", .arguments = {"x"}}), Error);
  RunOptions options = two_ranks();
  options.nproc_per_node = 99999;
  options.bind = Binding::core;
  EXPECT_THROW(describe_run(options), Error);
}

TEST(DescribeRun, ShowsThatRanksContinueAndGetAStore) {
  RunOptions options = two_ranks();
  options.on_failure = OnFailure::continue_without;
  options.leave_out_stragglers = std::chrono::seconds(30);
  const std::string text = describe_run(options);
  EXPECT_TRUE(contains(text, "  LOCKSTEP_ON_FAILURE=continue\n")) << text;
  EXPECT_TRUE(contains(text, "  LOCKSTEP_STRAGGLER_MS=30000\n")) << text;
  EXPECT_TRUE(contains(text, "LOCKSTEP_JOB_ID LOCKSTEP_STORE MASTER_PORT ")) << text;
}

}  // namespace
}  // namespace lockstep::launch::describe_run_test
