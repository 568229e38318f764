// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/run_log/run_record.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/toolkit/run_log/rank_report.h"
#include "lockstep/toolkit/run_log/scalar_means.h"
#include "tests/fault_of.h"

namespace lockstep::run_log::run_record_test {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;

RankReport report_of(int rank, int first, int steps) {
  RankReport report{.rank = rank, .step = first + steps};
  for (int step = first; step < first + steps; ++step)
    report.rows.emplace_back().fill(static_cast<float>(step));
  return report;
}

TEST(RankReport, IsReadAsItWasWritten) {
  RankReport report = report_of(3, 0, 2);
  report.samples = 64;
  report.is_last = true;
  report.rows[1][2] = 0.25F;
  report.scalars["loss"] = {{7, 1.5, 0.125}, {8, 1.75, NAN}};
  report.scalars["rate \xc3\xa9"] = {};
  report.times.steps = 5;
  report.times.spent[2] = 3ns;
  report.times.waited_for = {{1, 20ns}, {4, 40ns}};
  const std::string bytes = encode(report);
  const RankReport read = decode(bytes);
  EXPECT_EQ(read.rank, 3);
  EXPECT_EQ(read.step, 2);
  EXPECT_EQ(read.samples, 64);
  EXPECT_TRUE(read.is_last);
  EXPECT_EQ(read.rows, report.rows);
  ASSERT_EQ(read.scalars.size(), 2U);
  EXPECT_EQ(read.scalars.at("loss")[0].value, 0.125);
  EXPECT_EQ(read.scalars.at("loss")[1].step, 8);
  EXPECT_TRUE(std::isnan(read.scalars.at("loss")[1].value));
  EXPECT_EQ(read.times.steps, 5);
  EXPECT_EQ(read.times.spent, report.times.spent);
  EXPECT_EQ(read.times.waited_for, report.times.waited_for);
  for (std::size_t size = 0; size < bytes.size(); ++size)
    EXPECT_EQ(test::fault_of([&] { decode(bytes.substr(0, size)); }), Fault::corrupt) << size;
}

TEST(ScalarMeans, AreCompleteOnceAllRanksAreBeyondTheStep) {
  ScalarMeans means(2);
  means.add({.rank = 0, .step = 2, .scalars = {{"loss", {{0, 10, 1}, {1, 11, 2}, {2, 12, 3}}}}});
  EXPECT_TRUE(means.take_complete().empty());
  means.add({.rank = 1, .step = 1, .scalars = {{"loss", {{0, 9, 3}, {1, 11, 5}}}}});
  const auto first = means.take_complete();
  ASSERT_EQ(first.size(), 1U);
  EXPECT_EQ(first[0].name, "loss");
  EXPECT_EQ(first[0].step, 0);
  EXPECT_EQ(first[0].time, 9);
  EXPECT_EQ(first[0].value, 2);
  means.add({.rank = 1, .step = 1, .is_last = true});
  const auto second = means.take_complete();
  ASSERT_EQ(second.size(), 1U) << "rank 0 may log more in step 2";
  EXPECT_EQ(second[0].value, 3.5);
  means.end();
  const auto third = means.take_complete();
  ASSERT_EQ(third.size(), 1U);
  EXPECT_EQ(third[0].value, 3) << "only one rank has logged it";
  EXPECT_TRUE(means.take_complete().empty());
}

TEST(ScalarMeans, WaitForNoRankThatIsLost) {
  ScalarMeans means(2);
  for (std::int64_t step = 0; step < 3; ++step)
    means.add({.rank = 0, .step = step, .scalars = {{"loss", {{step, 1, 2.0}}}}});
  EXPECT_TRUE(means.take_complete().empty());
  means.end_all_but(0);
  EXPECT_EQ(means.take_complete().size(), 2U) << "rank 0 may log more in step 2";
}

TEST(ScalarMeans, TakeTheLastValueOfARankThatLogsTwice) {
  ScalarMeans means(1);
  means.add({.rank = 0, .step = 0, .scalars = {{"a", {{0, 1, 5}, {0, 2, 7}}}}});
  means.end();
  const auto all = means.take_complete();
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].value, 7);
}

TEST(RunRecord, IsJsonOfTheAgreedForm) {
  RunRecord record({.started = 1.5,
                    .host_of_rank = {0, 1},
                    .job_ranks = {3, 5},
                    .options = {{"batch_size", "64"}},
                    .links = {{"gloo", 1e-5, 1e9}},
                    .first_step = 100});
  RankReport report = report_of(1, 0, 3);
  report.samples = 12;
  report.times.spent[static_cast<std::size_t>(StepPhase::wait)] = 1500ms;
  report.times.waited_for = {{0, 250ms}, {1, 250ms}, {3, 1500ms}};
  record.add(report);
  record.add(ScalarMean{"loss", 100, 0, 0.5});
  record.add(ScalarMean{"loss", 101, 0, NAN});
  record.set_all_reduce_bytes(4096);
  const json run = json::parse(record.json("running", 2.5));
  EXPECT_EQ(run.at("format"), "lockstep-run-1");
  EXPECT_EQ(run.at("ended"), "running");
  EXPECT_EQ(run.at("started"), 1.5);
  EXPECT_EQ(run.at("seconds"), 2.5);
  EXPECT_EQ(run.at("ranks"), 2);
  EXPECT_EQ(run.at("hosts"), 2);
  EXPECT_EQ(run.at("host_of_rank"), json({0, 1}));
  EXPECT_EQ(run.at("options"), json({{"batch_size", "64"}}));
  EXPECT_EQ(run.at("samples"), 12);
  EXPECT_EQ(run.at("links").at(0).at("bytes_per_s"), 1e9);
  EXPECT_EQ(run.at("all_reduce_bytes_per_step"), 4096);
  EXPECT_EQ(run.at("phases").size(), step_phases);
  EXPECT_EQ(run.at("phases").at(0), "other");
  EXPECT_FALSE(run.at("program").get<std::string>().empty());
  const json& total = run.at("totals").at(1);
  EXPECT_EQ(total.at("rank"), 1);
  EXPECT_EQ(total.at("steps"), 3);
  EXPECT_EQ(total.at("seconds").at("wait"), 1.5);
  EXPECT_EQ(total.at("waited_for"), json({{"0", 1.5}})) << "by the ranks of the group";
  EXPECT_EQ(total.at("waited_for_outside"), 0.5);
  const json& steps = run.at("steps");
  EXPECT_EQ(steps.at("first"), 100);
  EXPECT_EQ(steps.at("every"), 1);
  EXPECT_EQ(steps.at("columns").at(0), "seconds");
  EXPECT_EQ(steps.at("columns").size(), 1 + step_phases);
  EXPECT_EQ(steps.at("ranks").at(0), json::array());
  EXPECT_EQ(steps.at("ranks").at(1).size(), 3U);
  EXPECT_EQ(steps.at("ranks").at(1).at(2), json(std::vector<double>(1 + step_phases, 2)));
  EXPECT_EQ(run.at("scalars").at("loss").at("steps"), json({100, 101}));
  EXPECT_EQ(run.at("scalars").at("loss").at("values"), json({0.5, nullptr}));
}

TEST(RunRecord, KeepsOnlyEveryFewStepsOfALongRun) {
  RunRecord record({.host_of_rank = {0, 0}, .job_ranks = {0, 1}}, /*most_rows=*/100,
                   /*most_values=*/10);
  for (int first = 0; first < 1000; first += 50)
    for (const int rank : {0, 1}) record.add(report_of(rank, first, 50));
  for (int step = 0; step < 1000; ++step)
    record.add(ScalarMean{"loss", step, 0, static_cast<double>(step)});
  const json run = json::parse(record.json("finished", 1));
  const json& steps = run.at("steps");
  const int every = steps.at("every");
  EXPECT_GE(every, 20);
  for (const json& rows : steps.at("ranks")) {
    EXPECT_LE(rows.size(), 50U);
    EXPECT_EQ(rows.size(), static_cast<std::size_t>((1000 + every - 1) / every));
    for (std::size_t i = 0; i < rows.size(); ++i)
      EXPECT_EQ(rows[i][0], static_cast<double>(i) * every);
  }
  EXPECT_EQ(run.at("totals").at(0).at("steps"), 1000);
  const json& loss = run.at("scalars").at("loss");
  EXPECT_LE(loss.at("steps").size(), 10U);
  EXPECT_EQ(loss.at("steps").size(), loss.at("values").size());
  EXPECT_EQ(loss.at("steps"), loss.at("values")) << "each value keeps its step";
}

}  // namespace
}  // namespace lockstep::run_log::run_record_test
