// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/run_log/run_log.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text_file.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/job/step_times.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"

namespace lockstep::run_log::run_log_test {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using test::Rank;
using test::Ranks;
using test::ScratchDirectory;
namespace fs = std::filesystem;

json read_run(const fs::path& file) { return json::parse(read_file(file.string())); }

std::size_t files_in(const fs::path& folder) {
  return static_cast<std::size_t>(
      std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

// Rank r logs its scalar in every (r + 1)-th step, and takes 10 - r steps.
void train(ProcessGroup& group, const RunLogOptions& options) {
  RunLog log(group, options);
  for (int i = 0; i < 10 - group.rank(); ++i) {
    const auto step = log.step(/*samples=*/4);
    const InPhase data(StepPhase::data);
    if (i % (group.rank() + 1) == 0) log.scalar("value", 10.0 * group.rank() + i);
    std::this_thread::sleep_for(1ms);
  }
}

void expect_means(const json& run, int ranks) {
  EXPECT_EQ(run.at("ended"), "finished");
  EXPECT_EQ(run.at("ranks"), ranks);
  EXPECT_EQ(run.at("hosts"), 1);
  std::vector<int> steps;
  std::vector<double> means;
  int samples = 0;
  for (int step = 0; step < 10; ++step) {
    double sum = 0;
    int count = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      if (step < 10 - rank) samples += 4;
      if (step >= 10 - rank || step % (rank + 1) != 0) continue;
      sum += 10.0 * rank + step;
      ++count;
    }
    steps.push_back(5 + step);
    means.push_back(sum / count);
  }
  EXPECT_EQ(run.at("samples"), samples);
  EXPECT_EQ(run.at("scalars").at("value").at("steps"), json(steps));
  EXPECT_EQ(run.at("scalars").at("value").at("values"), json(means));
  for (int rank = 0; rank < ranks; ++rank) {
    const json& total = run.at("totals").at(static_cast<std::size_t>(rank));
    EXPECT_EQ(total.at("steps"), 10 - rank);
    EXPECT_GE(total.at("seconds").at("data"), 0.010 - 0.001 * rank);
    const json& rows = run.at("steps").at("ranks").at(static_cast<std::size_t>(rank));
    ASSERT_EQ(rows.size(), static_cast<std::size_t>(10 - rank));
    for (const json& row : rows) {
      EXPECT_GE(row.at(1 + static_cast<std::size_t>(StepPhase::data)), 0.0009);
      double phases = 0;
      for (std::size_t i = 1; i < row.size(); ++i) phases += row.at(i).get<double>();
      EXPECT_NEAR(phases, row.at(0), 1e-3) << "all phases together are the step";
    }
  }
  EXPECT_EQ(run.at("links").size(), ranks > 1 ? 1U : 0U);
}

TEST(RunLog, HasMeansOverRanksThatLogDifferently) {
  for (const int ranks : {1, 2, 3}) {
    const ScratchDirectory scratch;
    const RunLogOptions options{.tensorboard = scratch.path() / "runs" / "a",
                                .json = scratch.path() / "run.json",
                                .options = {{"batch_size", "4"}},
                                .first_step = 5,
                                .interval = 2ms};
    run_in_process(ranks, [&](ProcessGroup& group) { train(group, options); });
    expect_means(read_run(options.json), ranks);
    EXPECT_EQ(files_in(options.tensorboard), 1U);
    EXPECT_EQ(files_in(scratch.path()), 2U) << "no temporary file is left";
  }
}

const Ranks processes("run log: processes", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  train(group, {.json = rank.scratch / "run.json", .first_step = 5});
  std::vector<float> values(256);
  RunLog second(group, {.json = rank.scratch / "second.json"});
  for (int i = 0; i < 3; ++i) {
    const auto step = second.step();
    group.all_reduce(buffer_of(values));
  }
  second.close();
  second.close();
  if (rank.rank == 0) {
    const json run = read_run(rank.scratch / "second.json");
    EXPECT_EQ(run.at("ended"), "finished");
    EXPECT_EQ(run.at("all_reduce_bytes_per_step"), 1024);
  }
  destroy_process_group(group);
  if (rank.rank == 0) expect_means(read_run(rank.scratch / "run.json"), rank.world_size);
});

TEST(RunLog, EndsWithItsGroupOrBefore) { EXPECT_TRUE(all_succeeded(processes.run(3))); }

const Ranks unwritable("run log: unwritable", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  write_file(rank.scratch / "file", "");
  for (const RunLogOptions& options :
       {RunLogOptions{.tensorboard = rank.scratch / "file" / "runs"},
        RunLogOptions{.json = rank.scratch / "absent" / "run.json"}}) {
    std::string text;
    EXPECT_EQ(test::fault_of([&] { const RunLog log(group, options); }, &text), Fault::system);
    EXPECT_NE(text.find(rank.scratch.string()), text.npos) << text;
  }
  RunLog nothing(group);
  const auto step = nothing.step();
  nothing.scalar("loss", 1);
  destroy_process_group(group);
});

TEST(RunLog, ReportsAWriteFailureImmediatelyOnAllRanks) {
  EXPECT_TRUE(all_succeeded(unwritable.run(2)));
}

TEST(RunLog, CountsAStepThatIsMovedOnce) {
  const ScratchDirectory scratch;
  const fs::path file = scratch.path() / "run.json";
  run_in_process(1, [&](ProcessGroup& group) {
    RunLog log(group, {.json = file});
    for (int i = 0; i < 3; ++i) {
      std::optional<RunLog::Step> step;
      step.emplace(log.step(/*samples=*/16));
    }
    log.close();
  });
  const json run = read_run(file);
  EXPECT_EQ(run.at("totals").at(0).at("steps"), 3);
  EXPECT_EQ(run.at("samples"), 48);
}

void await_steps(const fs::path& file, int ranks) {
  const auto limit = std::chrono::steady_clock::now() + 20s;
  const auto is_complete = [&] {
    if (!fs::exists(file)) return false;
    const json run = read_run(file);
    for (int rank = 0; rank < ranks; ++rank)
      if (run.at("totals").at(static_cast<std::size_t>(rank)).at("steps") != 5) return false;
    return true;
  };
  while (!is_complete()) {
    if (std::chrono::steady_clock::now() > limit) FAIL() << read_file(file.string());
    std::this_thread::sleep_for(2ms);
  }
}

void await_end(const fs::path& file, const std::string& ended) {
  const auto limit = std::chrono::steady_clock::now() + 20s;
  while (read_run(file).at("ended") != ended) {
    if (std::chrono::steady_clock::now() > limit) FAIL() << read_file(file.string());
    std::this_thread::sleep_for(2ms);
  }
}

void lose_a_rank(const Rank& rank, int victim, const std::string& ended) {
  const fs::path file = rank.scratch / "run.json";
  const auto run_until_the_loss = [&] {
    const ProcessGroup group = init_process_group();
    RunLog log(group, {.tensorboard = rank.scratch, .json = file, .interval = 1ms});
    for (int i = 0; i < 5; ++i) {
      const auto step = log.step();
      log.scalar("loss", i);
      std::this_thread::sleep_for(3ms);
    }
    std::this_thread::sleep_for(3ms);
    await_steps(file, rank.world_size);
    group.barrier();
    if (rank.rank == victim) ::kill(::getpid(), SIGKILL);
    group.barrier();
  };
  EXPECT_EQ(test::fault_of(run_until_the_loss), Fault::peer_lost);
  if (rank.rank != (victim + 1) % rank.world_size) return;
  await_end(file, ended);
  EXPECT_EQ(read_run(file).at("steps").at("ranks").at(2).size(), 5U);
}

const Ranks without_rank_1("run log: without rank 1",
                           [](const Rank& rank) { lose_a_rank(rank, 1, "failed"); });
const Ranks without_rank_0("run log: without rank 0",
                           [](const Rank& rank) { lose_a_rank(rank, 0, "running"); });

void expect_killed(int victim, const std::vector<test::Exit>& exits) {
  for (const test::Exit& exit : exits) {
    EXPECT_EQ(exit.signal, exit.rank == victim ? SIGKILL : 0) << "rank " << exit.rank;
    EXPECT_EQ(exit.code, exit.rank == victim ? -1 : 0) << exit.output;
  }
}

const Ranks ends_in_spite_of_a_loss("run log: ends in spite of a loss", [](const Rank& rank) {
  const ProcessGroup group = init_process_group({.timeout = 20s});
  RunLog log(group, {.json = rank.scratch / "run.json"});
  { const auto step = log.step(); }
  group.barrier();
  if (rank.rank == 1) ::kill(::getpid(), SIGKILL);
  EXPECT_EQ(test::fault_of([&] { group.barrier(); }), Fault::peer_lost);
  log.close();
  if (rank.rank != 0) return;
  EXPECT_EQ(read_run(rank.scratch / "run.json").at("ended"), "failed");
});

TEST(RunLog, IsUnfinishedAfterALostRank) { expect_killed(1, ends_in_spite_of_a_loss.run(2)); }

TEST(RunLog, IsWholeWhenARankIsLost) {
  expect_killed(1, without_rank_1.run(3));
  expect_killed(0, without_rank_0.run(3));
}

// A loop at 1,000 steps a second may lose 1 microsecond a step: 0.1 %.
TEST(RunLog, CostsNextToNothing) {
  const ScratchDirectory scratch;
  run_in_process(1, [&](ProcessGroup& group) {
    RunLog log(group, {.json = scratch.path() / "run.json"});
    constexpr int steps = 2000;
    std::chrono::nanoseconds best = 1h;
    for (int round = 0; round < 10; ++round) {
      const auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < steps; ++i) {
        const auto step = log.step();
        log.scalar("loss", i);
      }
      best = std::min<std::chrono::nanoseconds>(best, std::chrono::steady_clock::now() - begin);
    }
    RecordProperty("nanoseconds_a_step", static_cast<int>(best.count() / steps));
    EXPECT_LT(best / steps, 5us) << "expected: 0.1";
  });
}

}  // namespace
}  // namespace lockstep::run_log::run_log_test
