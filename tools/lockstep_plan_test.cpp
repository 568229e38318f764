// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>

#include "tests/ranks.h"
#include "tests/rigs/command.h"

namespace lockstep::test::lockstep_plan_test {
namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

std::string content_of(const std::string& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

TEST(LockstepPlan, ComparesAllSchedules) {
  const Finished plan = run_command({LOCKSTEP, "plan", "-n", "4", "--microbatches", "8"});
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_TRUE(has(plan.out,
                  "SCHEDULE     STAGES  TIME      IDLE    ACTIVATIONS  MESSAGES\n"
                  "gpipe        1       33        27.3 %  8            48\n"
                  "1f1b         1       33        27.3 %  4            48\n"
                  "interleaved  2       28.5      15.8 %  5.5          112\n"
                  "looped_bfs   2       28.5      15.8 %  8            112\n"
                  "zb1p         1       27        11.1 %  4            48\n"
                  "zbv          2       25.5      5.9 %   4            96\n\n"))
      << plan.out;
  const Finished some = run_command({LOCKSTEP_PLAN, "-n", "4", "--microbatches", "9"});
  EXPECT_EQ(some.code, 0);
  EXPECT_TRUE(has(some.out, "the nearest that fit are 8 and 10\n")) << some.out;
}

TEST(LockstepPlan, DrawsOneSchedule) {
  const Finished plan =
      run_command({LOCKSTEP_PLAN, "-n", "2", "--microbatches", "3", "--schedule", "1f1b"});
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_EQ(plan.out,
            "1f1b: 2 ranks, 2 stages, 3 microbatches\n\n"
            "rank 0 F0 F1 ......B0--- F2 B1--- ...B2---\n"
            "rank 1 ...F0 B0--- F1 B1--- F2 B2--- ......\n"
            "time   0     2     4     6     8     10    12\n\n"
            "idle         25.0 % of the ranks' time\n"
            "activations  2 1  microbatches of which each rank keeps its part's at once\n"
            "outputs      2  of each stage, in use at once at most\n"
            "gradients    2  of these outputs\n");
  const Finished narrow = run_command(
      {LOCKSTEP_PLAN, "-n", "2", "--microbatches", "3", "--schedule", "1f1b", "--columns", "20"});
  EXPECT_TRUE(has(narrow.out, "rank 0 FF..B-FB-.B-\n")) << narrow.out;
}

TEST(LockstepPlan, TakesTimesAndStages) {
  const Finished plan =
      run_command({LOCKSTEP_PLAN, "-n", "2", "--microbatches", "2", "--schedule", "interleaved",
                   "--stages-per-rank", "4", "--times", "4,4,4,0.5"});
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_TRUE(has(plan.out, "2 ranks, 8 stages")) << plan.out;
  const Finished compared = run_command(
      {LOCKSTEP_PLAN, "-n", "2", "--microbatches", "4", "--times", "2,3,1", "--stages-per-rank=3"});
  EXPECT_TRUE(has(compared.out, "gpipe        1       30 ")) << compared.out;
  EXPECT_TRUE(has(compared.out, "looped_bfs   3       26 ")) << compared.out;
}

TEST(LockstepPlan, WritesAnOrderAndAPictureAndReadsTheOrder) {
  const ScratchDirectory scratch;
  const std::string order = scratch.path() / "order.csv";
  const std::string picture = scratch.path() / "order.svg";
  const Finished plan = run_command({LOCKSTEP_PLAN, "-n", "2", "--microbatches", "2", "--schedule",
                                     "gpipe", "--write", order, "--svg", picture});
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_EQ(content_of(order), "0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n");
  EXPECT_TRUE(has(content_of(picture), "<svg "));
  const Finished checked = run_command({LOCKSTEP_PLAN, "--order", order});
  EXPECT_EQ(checked.code, 0) << checked.err;
  EXPECT_TRUE(has(checked.out, "order.csv: 2 ranks, 2 stages, 2 microbatches\n"));
  EXPECT_EQ(checked.out.substr(checked.out.find("\nrank")),
            plan.out.substr(plan.out.find("\nrank")));
}

TEST(LockstepPlan, AnOrderThatCannotRunIsExitCode1) {
  const ScratchDirectory scratch;
  const std::string order = scratch.path() / "order.csv";
  const auto complaint = [&](const char* text) {
    std::ofstream(order) << text;
    const Finished plan = run_command({LOCKSTEP_PLAN, "--order", order});
    EXPECT_EQ(plan.code, 1);
    EXPECT_EQ(plan.out, "");
    return plan.err;
  };
  const std::string circle = complaint("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n");
  EXPECT_TRUE(has(circle,
                  "ranks wait for each other: rank 0 in 0B0 for 1B0 of rank 1; rank 1 in "
                  "1F1 for 0F1 of rank 0\n"))
      << circle;
  EXPECT_TRUE(has(complaint("0F0\n"), "0B0 is missing"));
  EXPECT_TRUE(has(complaint("0F0,what\n"), "order.csv:1: 'what' is not an action"));
}

TEST(LockstepPlan, RefusesWhatItDoesNotUnderstandAndHelps) {
  const std::string order = "/no/such/order.csv";
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {},
           {"-n", "4"},
           {"-n", "0", "--microbatches", "4"},
           {"-n", "4", "--microbatches", "4", "--schedule", "fast"},
           {"-n", "4", "--microbatches", "4", "--svg", "file.svg"},
           {"-n", "4", "--microbatches", "4", "--times", "1,1"},
           {"-n", "4", "--microbatches", "4", "--times", "1,1,nan"},
           {"-n", "256", "--microbatches", "4096"},
           {"-n", "4", "--order", order},
           {"-n", "4", "--microbatches", "9", "--schedule", "zb1p"},
           {"-n", "4", "--microbatches", "8", "--schedule", "1f1b", "--stages-per-rank", "2"}}) {
    std::vector<std::string> arguments{LOCKSTEP_PLAN};
    arguments.insert(arguments.end(), words.begin(), words.end());
    const Finished plan = run_command(arguments);
    EXPECT_EQ(plan.code, 64) << plan.out;
    EXPECT_TRUE(plan.err.starts_with("lockstep plan: ")) << plan.err;
  }
  EXPECT_EQ(run_command({LOCKSTEP_PLAN, "--order", order}).code, 71);
  const Finished help = run_command({LOCKSTEP_PLAN, "--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_TRUE(has(help.out, "lockstep plan --order my.csv"));
}

}  // namespace
}  // namespace lockstep::test::lockstep_plan_test
