// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/toolkit/plan/model_profile.h"
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

// --- Layouts of a program ------------------------------------------------------------------------

constexpr double mebi = 1 << 20;

// Four layers on two ranks: per layer, 64 MiB of weights, gradients and state; 1 MiB of activations
// per row.
ModelProfile profile() {
  ModelProfile profile{.ranks = 2, .rows = 8, .parameters = 1.7e7};
  LayerKind kind{.name = "h.0"};
  for (const int tp : {1, 2})
    kind.parts.push_back({.tp = tp,
                          .parameter_bytes = 16 * mebi / tp,
                          .gradient_bytes = 16 * mebi / tp,
                          .large_gradient_bytes = 16 * mebi / tp,
                          .state_bytes = 32 * mebi / tp,
                          .optimizer = 0.001 / tp,
                          .samples = {{.rows = 1,
                                       .forward = 0.01 / tp,
                                       .backward = 0.02 / tp,
                                       .backward_input = 0.01 / tp,
                                       .backward_weight = 0.01 / tp,
                                       .kept_bytes = mebi,
                                       .peak_bytes = mebi,
                                       .split_peak_bytes = mebi,
                                       .output_bytes = mebi / 16}}});
  profile.kinds = {kind};
  profile.loss = {.name = "loss", .parts = {{.tp = 1, .samples = {{.rows = 1}}}}};
  profile.loss.parts.push_back({.tp = 2, .refusal = "the loss wants whole logits"});
  for (int layer = 0; layer < 4; ++layer) {
    profile.layers.push_back("h." + std::to_string(layer));
    profile.kind_of_layer.push_back(0);
  }
  profile.reduces = {{.ranks = 2, .bytes = mebi, .all_reduce = 0.001, .reduce_scatter = 0.001}};
  profile.copy_bandwidth = 1e10;
  return profile;
}

class PlannedProgram : public ::testing::Test {
 protected:
  PlannedProgram() { std::ofstream(file) << to_json(profile()); }

  Finished plan(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), {LOCKSTEP, "plan"});
    return run_command(std::move(arguments));
  }

  const ScratchDirectory scratch;
  const std::string file = scratch.path() / "profile.json";
};

TEST_F(PlannedProgram, IsStartedAndItsLayoutsAreShown) {
  const std::string copy = scratch.path() / "copy.json";
  const Finished done = plan(
      {"-n", "2", "--memory", "8G", "--profile", copy, "/bin/sh", "-c",
       "echo measuring \"$@\"; [ $RANK = 1 ] || cp \"$1\" \"$LOCKSTEP_PLAN\"", "sh", file, "-n"});
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_TRUE(has(done.err, "measuring " + file + " -n")) << done.err;
  EXPECT_FALSE(has(done.out, "measuring")) << done.out;
  EXPECT_TRUE(has(
      done.out,
      "17.0 M parameters in 4 layers, batches of 8 rows; 2 ranks on 1 host with 8.0 "
      "GiB\n\n"
      "   DP  TP  PP  CP  FSDP  MICRO  SCHEDULE      STEP    IDLE       RANK       HOST  LINK\n"))
      << done.out;
  EXPECT_TRUE(has(done.out,
                  "2   1   1   1     -      -  -         552.0 ms       -  272.0 MiB  "
                  "544.0 MiB  -\n"))
      << done.out;
  EXPECT_TRUE(has(done.out, "1 layout: tp 2: the loss wants whole logits\n")) << done.out;
  EXPECT_TRUE(has(done.out, "2 layouts: the program does not cut sequences (cp)\n")) << done.out;
  EXPECT_TRUE(has(done.out, "\nBest: pp 2; schedule ")) << done.out;
  EXPECT_TRUE(has(done.out, "\n  start: lockstep run -n 2 PROGRAM\n")) << done.out;
  EXPECT_TRUE(has(done.out, "\nrank 0 F")) << done.out;
  EXPECT_EQ(content_of(copy), content_of(file));
}

TEST_F(PlannedProgram, IsNotStartedIfThereIsAProfile) {
  const std::string json = scratch.path() / "plan.json", svg = scratch.path() / "plan.svg";
  const Finished done = plan({"-n", "2", "--nnodes", "2", "--link", "1G", "--profile", file,
                              "--json", json, "--svg", svg, "--top", "3"});
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_TRUE(has(done.out, "4 ranks on 2 hosts with ")) << done.out;
  EXPECT_TRUE(has(done.out, " more: see --top\n")) << done.out;
  EXPECT_TRUE(has(done.out, "lockstep run -n 2 --nnodes 2 PROGRAM\n")) << done.out;
  EXPECT_TRUE(has(content_of(svg), "<svg "));
  const auto written = nlohmann::json::parse(content_of(json));
  EXPECT_EQ(written["machine"]["link_bytes_per_second"], 125e6);
  const auto& best = written["layouts"][0];
  EXPECT_TRUE(best["fits"]);
  EXPECT_GT(best["step_seconds"], 0);
  EXPECT_TRUE(has(content_of(json), "tp 4 does not divide the 2 ranks of a host"));
  const Finished other = plan({"-n", "4", "--profile", file});
  EXPECT_EQ(other.code, 64);
  EXPECT_TRUE(has(other.err, "was measured with 2 ranks a host, not 4")) << other.err;
}

TEST_F(PlannedProgram, SuggestsChangesIfNoLayoutFits) {
  const Finished done = plan({"-n", "2", "--memory", "200M", "--profile", file});
  EXPECT_EQ(done.code, 1) << done.err;
  EXPECT_TRUE(has(done.out, "  does not fit\n")) << done.out;
  EXPECT_TRUE(has(done.out, "No layout fits. The nearest is pp 2: it needs 257.0 MiB")) << done.out;
  EXPECT_TRUE(has(done.out, " a host, and there are 200.0 MiB.\nWhat would help:")) << done.out;
  EXPECT_TRUE(has(done.out, "(FullyShardedDataParallel)\n")) << done.out;
  EXPECT_FALSE(has(done.out, "The best pipeline")) << done.out;
}

TEST_F(PlannedProgram, ReportsWhyThereIsNoMeasurement) {
  const Finished none = plan({"-n", "2", scratch.path() / "none"});
  EXPECT_EQ(none.code, 127) << none.err;
  EXPECT_TRUE(has(none.err, "/none")) << none.err;
  const Finished quiet = plan({"-n", "1", "/bin/true"});
  EXPECT_EQ(quiet.code, 1);
  EXPECT_TRUE(has(quiet.err,
                  "/bin/true ended without measuring its model: it has to call "
                  "lockstep::plan_if_asked()"))
      << quiet.err;
  const Finished failed = plan({"-n", "1", "/bin/sh", "-c", "exit 7"});
  EXPECT_EQ(failed.code, 7);
  EXPECT_TRUE(has(failed.err, "before it had measured its model, with exit code 7")) << failed.err;
  std::ofstream(file) << "{";
  const Finished corrupt = plan({"-n", "2", "--profile", file});
  EXPECT_TRUE(has(corrupt.err, "profile.json: the profile of a model: ")) << corrupt.err;
}

TEST_F(PlannedProgram, RefusesWrongOptions) {
  const auto refused = [&](std::vector<std::string> arguments, const std::string& text) {
    const Finished done = plan(std::move(arguments));
    EXPECT_EQ(done.code, 64) << text;
    EXPECT_TRUE(has(done.err, text)) << done.err;
    EXPECT_TRUE(has(done.err, "see lockstep plan --help")) << done.err;
  };
  refused({"-n", "2", "--memory", "64X", "/bin/true"}, "'64X' is not a size such as 64G");
  refused({"-n", "2", "--memory=-1G", "/bin/true"}, "'-1G' is not a size");
  refused({"-n", "2", "--link", "fast", "/bin/true"}, "'fast' are no bits a second such as 1G");
  refused({"-n", "129", "--nnodes", "2", "/bin/true"},
          "-n 129 on each of 2 hosts are more than 256 ranks");
  refused({"/bin/true"}, "-n is needed: the ranks on each host");
  refused({"-n", "2", "--microbatches", "4", "/bin/true"},
          "--microbatches is not for layouts of a program");
  refused({"-n", "2", "--microbatches", "4", "--memory", "1G"}, "--memory needs PROGRAM");
  refused({"-n", "2", "--loud", "/bin/true"}, "unknown option --loud");
  refused({"-n", "2", "--"}, "PROGRAM is missing");
  refused({"-n", "2", ""}, "PROGRAM is empty");
}

}  // namespace
}  // namespace lockstep::test::lockstep_plan_test
