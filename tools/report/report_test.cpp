// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text_file.h"
#include "tests/fault_of.h"
#include "tools/report/figures.h"
#include "tools/report/run_file.h"
#include "tools/report/what_if.h"

namespace lockstep::tools::report_test {
namespace {

using namespace std::chrono_literals;

constexpr int steps = 100;

RunFile run_of(int ranks, const Split& split, double samples_a_step = 0) {
  RunFile run{.name = "run" + std::to_string(ranks) + ".json", .ended = "finished", .ranks = ranks};
  run.samples = samples_a_step * steps;
  for (int rank = 0; rank < ranks; ++rank) {
    RankTimes times{.rank = rank, .times = {.steps = steps}};
    for (std::size_t i = 0; i < step_phases; ++i)
      times.times.spent[i] = std::chrono::round<std::chrono::nanoseconds>(
          std::chrono::duration<double, std::milli>(steps * split[i]));
    run.totals.push_back(times);
  }
  return run;
}

Split split(double data, double forward, double reduce = 0, double wait = 0) {
  Split made{};
  made[static_cast<std::size_t>(StepPhase::data)] = data;
  made[static_cast<std::size_t>(StepPhase::forward)] = forward;
  made[static_cast<std::size_t>(StepPhase::reduce)] = reduce;
  made[static_cast<std::size_t>(StepPhase::wait)] = wait;
  return made;
}

const WhatIf* find(const std::vector<WhatIf>& all, const std::string& question) {
  for (const WhatIf& each : all)
    if (each.question.starts_with(question)) return &each;
  return nullptr;
}

// --- Figures -------------------------------------------------------------------------------------

TEST(Report, EfficiencyIsTheThroughputOfARank) {
  const Comparison all = compare({run_of(2, split(0, 100), 170), run_of(1, split(0, 100), 100)});
  EXPECT_TRUE(all.is_rate_known);
  EXPECT_EQ(all.runs.front().ranks, 1) << "the base";
  EXPECT_NEAR(all.figures[0].rate, 1000, 1e-6);
  EXPECT_NEAR(all.speed_up(1), 1.7, 1e-9);
  EXPECT_NEAR(all.efficiency(1), 0.85, 1e-9) << "70 % faster with twice the ranks";
}

TEST(Report, SamplesComeFromTheBatchSizeOrCountAsOneForEachRank) {
  RunFile one = run_of(1, split(0, 10));
  RunFile two = run_of(2, split(0, 10));
  EXPECT_FALSE(compare({one, two}).is_rate_known);
  EXPECT_NEAR(compare({one, two}).efficiency(1), 1, 1e-9);
  for (RunFile* run : {&one, &two}) run->options["batch_size"] = "32";
  const Comparison all = compare({one, two});
  EXPECT_TRUE(all.is_rate_known);
  EXPECT_NEAR(all.figures[1].rate, 6400, 1e-6);
}

TEST(Report, FitsAmdahlsLaw) {
  constexpr double serial = 0.1;
  std::vector<RunFile> runs;
  for (const int ranks : {1, 2, 4, 8})
    runs.push_back(run_of(ranks, split(0, 100), 100 * speed_up_at(serial, ranks)));
  EXPECT_NEAR(compare(runs).serial_part().value(), serial, 1e-9);
  EXPECT_EQ(compare({runs[0]}).serial_part(), std::nullopt);
  EXPECT_EQ(compare({runs[2], runs[2]}).serial_part(), std::nullopt) << "one number of ranks";
}

TEST(Report, StepsCountWithoutTheFirst) {
  RunFile run = run_of(1, split(0, 1000));
  StepRow first{.seconds = 1};
  StepRow later{.seconds = 0.02};
  first.phases[static_cast<std::size_t>(StepPhase::forward)] = 1;
  later.phases[static_cast<std::size_t>(StepPhase::forward)] = 0.02;
  run.steps = {{first, later, later, later}};
  run.every = 32;
  const Comparison all = compare({run});
  EXPECT_NEAR(all.figures[0].step_ms, 20, 1e-6);
  EXPECT_NEAR(all.figures[0].median_ms, 20, 1e-6);
  ASSERT_EQ(all.figures[0].bins.size(), 4U);
  EXPECT_EQ(all.figures[0].bins[3].step, 96);
}

// Rank 1 is 900 ms late in the first step, rank 0 400 ms in all others. The file has one of four
// rows.
TEST(Report, AStragglerIsNamedAsTheLauncherDoes) {
  RunFile run = run_of(2, split(0, 10));
  const auto row = [](double data, double wait) {
    StepRow made{.seconds = data + wait};
    made.phases[static_cast<std::size_t>(StepPhase::data)] = data;
    made.phases[static_cast<std::size_t>(StepPhase::wait)] = wait;
    return made;
  };
  run.every = 4;
  run.steps = {std::vector<StepRow>(25, row(0.014, 0)), std::vector<StepRow>(25, row(0.01, 0.004))};
  run.steps[0][0] = row(0.014, 0.9);
  run.totals[1].times.waited_for = {{0, 400ms}};
  const auto straggler = compare({run}).figures[0].straggler;
  ASSERT_TRUE(straggler);
  EXPECT_EQ(straggler->rank, 0);
  EXPECT_NEAR(straggler->waited_ms, 400.0 / 99, 1e-6);
  ASSERT_EQ(straggler->late_in.size(), 1U);
  EXPECT_NEAR(straggler->late_in[0].second, 4, 1e-6);
  run.totals[1].times.waited_for = {{0, 200ms}};
  EXPECT_FALSE(compare({run}).figures[0].straggler) << "nobody looks for the cause of so little";
}

TEST(Report, ManyStepsAreDrawnAsABoundedNumberOfBins) {
  RunFile run = run_of(1, split(0, 10));
  run.steps = {std::vector<StepRow>(100'000, StepRow{.seconds = 0.01, .phases = {0.01}})};
  run.steps[0][70'000].seconds = 5;
  const auto bins = compare({run}).figures[0].bins;
  EXPECT_LE(bins.size(), 300U);
  double most = 0;
  for (const StepBin& bin : bins) most = std::max(most, bin.most_ms);
  EXPECT_EQ(most, 5000) << "no long step is lost";
}

TEST(Report, ARunWithoutStepsIsRefusedByName) {
  RunFile run = run_of(1, split(0, 10));
  run.totals[0].times.steps = 0;
  for (const auto& [ended, words] :
       {std::pair("failed", "this run has failed before that"), std::pair("running", "was killed"),
        std::pair("finished", "there were no steps")}) {
    run.ended = ended;
    std::string message;
    EXPECT_EQ(test::fault_of([&] { compare({run}); }, &message), Fault::corrupt);
    EXPECT_NE(message.find("run1.json: no rank has recorded a step: "), message.npos) << message;
    EXPECT_NE(message.find(words), message.npos) << message;
  }
}

// --- What if -------------------------------------------------------------------------------------

TEST(WhatIf, DataIsReadyInTime) {
  const Comparison all = compare({run_of(2, split(20, 80))});
  const auto answers = changes(all.runs[0], all.figures[0]);
  const WhatIf* const data = find(answers, "with batches ready in time");
  ASSERT_NE(data, nullptr);
  EXPECT_NEAR(data->step_ms, 80, 1e-6);
  EXPECT_NEAR(data->gain, 1.25, 1e-6);
  EXPECT_EQ(find(answers, "with the work spread evenly"), nullptr) << "it is";
}

// Rank 1 is late in data, and rank 0 waits for it, so the step is as long as rank 1's work.
TEST(WhatIf, WorkIsSpreadEvenly) {
  RunFile run = run_of(2, split(0, 60, 5, 40));
  run.totals[1] = run_of(2, split(40, 60, 5)).totals[1];
  const Comparison all = compare({run});
  const auto answers = changes(all.runs[0], all.figures[0]);
  EXPECT_NEAR(find(answers, "with the work spread evenly")->step_ms, 85, 1e-6);
  EXPECT_NEAR(find(answers, "with batches ready in time")->step_ms, 65, 1e-6);
}

// As RunLog measures a link of 1 ms and 1 MB/s among 8 ranks.
TEST(WhatIf, AnAllReduceOfOtherRanksHasOtherLatenciesAndBytes) {
  const AllReduce measured{.link = {.latency_s = 6e-3, .bytes_per_s = 1e6 / 1.75},
                           .measured_among = 8};
  EXPECT_EQ(measured.seconds(1e6, 1), 0);
  EXPECT_NEAR(measured.seconds(1e6, 2), 2e-3 + 1, 1e-12);
  EXPECT_NEAR(measured.seconds(1e6, 8), 6e-3 + 1.75, 1e-12) << "what was measured";
  EXPECT_NEAR(measured.seconds(1e6, 64), 12e-3 + 2 * 63.0 / 64, 1e-12);
}

TEST(WhatIf, GradientsHaveHalfTheBytes) {
  RunFile run = run_of(2, split(0, 60, 40));
  const auto half = [&] {
    const Comparison all = compare({run});
    return find(changes(all.runs[0], all.figures[0]), "with gradients sent as bfloat16")->step_ms;
  };
  EXPECT_NEAR(half(), 80, 1e-6) << "of an unknown link";
  run.links = {{.name = "gloo", .latency_s = 1e-3, .bytes_per_s = 1e9}};
  run.all_reduce_bytes = 3e6;  // 1 ms of latencies, 3 ms of bytes.
  EXPECT_NEAR(half(), 60 + 40 * 2.5 / 4, 1e-6);
  run.links[0].bytes_per_s = 0;
  EXPECT_NEAR(half(), 80, 1e-6) << "a bandwidth that could not be measured";
}

TEST(WhatIf, OtherNumbersOfRanksGrowTheReduction) {
  RunFile run = run_of(2, split(0, 60, 40));
  run.links = {{.name = "gloo", .latency_s = 1e-3, .bytes_per_s = 1e9},
               {.name = "shared memory", .latency_s = 1e-6, .bytes_per_s = 1e8}};
  run.all_reduce_bytes = 3e6;
  const auto answers = other_sizes(compare({run}), {8});
  ASSERT_EQ(answers.size(), 1U) << "a single run does not determine Amdahl's law";
  EXPECT_EQ(answers[0].question, "on 8 ranks");
  EXPECT_NEAR(answers[0].step_ms, 60 + 40 * (3 + 1.75 * 3) / 4, 1e-6);
  EXPECT_NEAR(answers[0].gain, 4 * 100 / answers[0].step_ms, 1e-6);
  EXPECT_TRUE(other_sizes(compare({run_of(1, split(0, 100))}), {8}).empty())
      << "a single rank does not measure an all_reduce";
}

// --- Files ---------------------------------------------------------------------------------------

constexpr const char* minimal =
    R"({"format": "lockstep-run-1", "lockstep": "0.1", "torch": "2.13.0",
  "program": "./train", "arguments": ["--epochs", "5"], "started": 1.8e9, "seconds": 12.5,
  "ended": "running", "ranks": 2, "hosts": 1, "host_of_rank": [0, 0], "options": {"lr": "0.1"},
  "samples": 640, "links": [{"name": "shared memory", "latency_s": 1e-6, "bytes_per_s": 5e9}],
  "all_reduce_bytes_per_step": 8.4e6, "phases": ["data", "forward", "magic"],
  "totals": [{"rank": 1, "steps": 10, "seconds": {"data": 0.5}, "waited_for": {}},
             {"rank": 0, "steps": 10, "seconds": {"forward": 1, "magic": 0.25},
              "waited_for": {"1": 0.125}}],
  "steps": {"first": 3, "every": 2, "columns": ["seconds", "data"], "ranks": [[[0.5, 0.25]], []]},
  "scalars": {"loss": {"steps": [1, 2, 3], "values": [2.5, null, 2]}}})";

class RunJson : public ::testing::Test {
 public:
  RunJson() : path_(::testing::TempDir() + "run_" + std::to_string(::getpid()) + ".json") {}
  ~RunJson() override { std::filesystem::remove(path_); }

  RunFile read(const std::string& text) const {
    write_file(path_, text);
    return read_run_file(path_);
  }

  std::string refusal(const std::string& text) const {
    std::string message;
    EXPECT_EQ(test::fault_of([&] { read(text); }, &message), Fault::corrupt) << text;
    EXPECT_NE(message.find(path_ + ": "), message.npos) << message;
    return message;
  }

  std::string refusal_with(const std::string& part, const std::string& by) const {
    std::string text = minimal;
    const auto place = text.find(part);
    EXPECT_NE(place, text.npos) << part;
    return refusal(text.replace(place, part.size(), by));
  }

 private:
  const std::string path_;
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

TEST_F(RunJson, IsRead) {
  const RunFile run = read(minimal);
  EXPECT_EQ(run.about[0], std::pair(std::string("program"), std::string("./train --epochs 5")));
  EXPECT_EQ(run.ended, "running");
  EXPECT_EQ(run.ranks, 2);
  EXPECT_EQ(run.options.at("lr"), "0.1");
  EXPECT_EQ(run.totals[0].rank, 0) << "sorted";
  EXPECT_EQ(run.totals[0].times[StepPhase::other], 250ms) << "an unknown phase";
  EXPECT_EQ(run.totals[0].times.waited_for.at(1), 125ms);
  EXPECT_EQ(run.every, 2);
  EXPECT_EQ(run.steps[0][0].seconds, 0.5);
  EXPECT_EQ(run.scalars.at("loss").values, (std::vector<double>{2.5, 2})) << "NaN is null";
  EXPECT_NO_THROW(compare({run}));
}

TEST_F(RunJson, RejectsAnotherFormatAndNamesIt) {
  EXPECT_TRUE(has(refusal(""), "the file is empty"));
  EXPECT_TRUE(has(refusal(" \n"), "the file is empty"));
  EXPECT_TRUE(has(refusal("loss=2.5\n"), "this is not JSON"));
  EXPECT_TRUE(has(refusal(std::string(minimal).substr(0, 500)), "a part of it is missing"));
  EXPECT_TRUE(has(refusal("[1, 2]"), "not a run.json of Lockstep"));
  EXPECT_TRUE(has(refusal("{\"a\": 1}"), "not a run.json of Lockstep"));
  EXPECT_TRUE(has(refusal_with("lockstep-run-1", "lockstep-run-2"),
                  "its format is 'lockstep-run-2'; this version"));
}

TEST_F(RunJson, ThatContradictsItselfIsRefused) {
  EXPECT_TRUE(has(refusal_with("\"ranks\": 2,", ""), "'ranks' is missing"));
  EXPECT_TRUE(has(refusal_with("\"ranks\": 2,", "\"ranks\": 0,"), "'ranks' is not a number from"));
  EXPECT_TRUE(has(refusal_with("\"hosts\": 1", "\"hosts\": 3"), "'hosts'"));
  EXPECT_TRUE(has(refusal_with("\"rank\": 1", "\"rank\": 0"), "rank 0 twice"));
  EXPECT_TRUE(has(refusal_with("\"rank\": 1", "\"rank\": 2"), "'rank'"));
  EXPECT_TRUE(has(refusal_with("{\"1\": 0.125}", "{\"9\": 1}"), "'9' is not a rank of 2"));
  EXPECT_TRUE(has(refusal_with("\"data\": 0.5", "\"data\": -1"), "'data' is not a number of 0"));
  EXPECT_TRUE(has(refusal_with("[0.5, 0.25]", "[0.5]"), "does not have 2 numbers"));
  EXPECT_TRUE(has(refusal_with("[2.5, null, 2]", "[2.5]"), "more steps than values"));
  EXPECT_TRUE(has(refusal_with("\"seconds\": 12.5", "\"seconds\": \"long\""), "'seconds'"));
  EXPECT_TRUE(has(refusal_with("{\"data\": 0.5}", "7"), "'seconds' is not an object"));
}

}  // namespace
}  // namespace lockstep::tools::report_test
