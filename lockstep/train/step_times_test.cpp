// Tests the phases of real training loops, and that a slow rank and its slow phase are identified.

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/step_times.h"

#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/checkpoint/checkpointer.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/data/data_loader.h"
#include "lockstep/job/straggler.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "lockstep/parallel/shared_parameters/shared_optimizer.h"
#include "lockstep/tensor/module_state.h"
#include "tests/ranks.h"

namespace lockstep::train::step_times_test {
namespace {

using namespace std::chrono_literals;
using test::Rank;
using test::Ranks;

constexpr int ranks = 3;
constexpr int slow_rank = 1;
constexpr int batch = 4;
constexpr int steps = 8;
constexpr auto delay = 10ms;

void be_slow() { std::this_thread::sleep_for(delay); }

struct Net : torch::nn::Module {
  explicit Net(StepPhase slow_in) : slow(slow_in) { register_module("fc", fc); }

  torch::Tensor forward(const torch::Tensor& x) {
    if (slow == StepPhase::forward) be_slow();
    const torch::Tensor y = fc->forward(x);
    if (slow == StepPhase::backward && y.requires_grad())
      y.register_hook([](const torch::Tensor&) { be_slow(); });
    return torch::relu(y);
  }

  const StepPhase slow;
  torch::nn::Linear fc{16, 4};
};

// Samples that are slow to read on request.
class Samples final : public BatchDataset {
 public:
  Samples(int count, bool slow) : samples_(static_cast<std::size_t>(count)), slow_(slow) {}

  std::size_t size() const override { return samples_; }
  SampleSpec data_spec() const override { return {.sizes = {16}}; }
  SampleSpec target_spec() const override { return {.sizes = {}, .type = torch::kLong}; }
  void fill(const BatchRows& rows) const override {
    if (slow_) be_slow();
    rows.data.zero_();
    rows.target.zero_();
  }

 private:
  const std::size_t samples_;
  const bool slow_;
};

// The times of as many steps with the median of each time. A host may stop a rank for longer than
// all delays take, in one step.
StepTimes typical_times(const std::vector<StepTimes>& all) {
  const auto sum_of_medians = [&](const auto& time_of) {
    std::vector<std::chrono::nanoseconds> times;
    for (const StepTimes& each : all) times.push_back(time_of(each));
    std::ranges::sort(times);
    return times[times.size() / 2] * static_cast<std::int64_t>(times.size());
  };
  StepTimes typical;
  for (const StepTimes& each : all) typical.steps += each.steps;
  for (std::size_t phase = 0; phase < step_phases; ++phase)
    typical.spent[phase] = sum_of_medians([&](const StepTimes& each) { return each.spent[phase]; });
  for (int rank = 0; rank < ranks; ++rank) {
    const auto waited = sum_of_medians([&](const StepTimes& each) {
      const auto found = each.waited_for.find(rank);
      return found == each.waited_for.end() ? 0ns : found->second;
    });
    if (waited > 0ns) typical.waited_for[rank] = waited;
  }
  return typical;
}

// Trains `steps` steps, and returns how this rank's time was spent.
StepTimes times_of_training(const ProcessGroup& world, StepPhase slow_in,
                            const DistributedDataParallelOptions& options) {
  const StepPhase slow = world.rank() == slow_rank ? slow_in : StepPhase::other;
  const auto net = std::make_shared<Net>(slow);
  DistributedDataParallel ddp(net, world, options);
  std::unique_ptr<torch::optim::Optimizer> adam;
  if (options.share_parameters)
    adam = std::make_unique<SharedOptimizer<Adam>>(ddp, net->parameters(),
                                                   torch::optim::AdamOptions(1e-3));
  else
    adam = std::make_unique<Adam>(net->parameters(), torch::optim::AdamOptions(1e-3));
  const Samples samples(world.size() * batch * steps, slow == StepPhase::data);
  DistributedSampler sampler(samples.size(), world);
  DataLoader loader(samples, sampler, world, {.batch_size = batch, .threads = 0});
  world.barrier();
  std::vector<StepTimes> all;
  StepTimes before = step_times();
  for (const Batch& each : loader) {
    adam->zero_grad();
    torch::nn::functional::cross_entropy(ddp(each.data), each.target).backward();
    if (slow == StepPhase::optimizer) {
      const InPhase phase(StepPhase::optimizer);
      be_slow();
    }
    adam->step();
    const StepTimes now = step_times();
    all.push_back(now - before);
    before = now;
  }
  return typical_times(all);
}

// Every rank's times.
std::vector<RankTimes> all_times(const ProcessGroup& world, const StepTimes& own) {
  constexpr std::size_t waits = 16;
  std::vector<std::int64_t> mine{own.steps};
  for (const auto spent : own.spent) mine.push_back(spent.count());
  mine.resize(mine.size() + waits);
  for (const auto& [rank, time] : own.waited_for)
    mine.at(1 + step_phases + static_cast<std::size_t>(rank)) = time.count();
  std::vector<std::int64_t> all(mine.size() * static_cast<std::size_t>(world.size()));
  world.all_gather({.data = mine.data(), .count = mine.size(), .dtype = DType::int64},
                   {.data = all.data(), .count = all.size(), .dtype = DType::int64});
  std::vector<RankTimes> found;
  for (int rank = 0; rank < world.size(); ++rank) {
    const auto* next = all.data() + static_cast<std::size_t>(rank) * mine.size();
    RankTimes& times = found.emplace_back(RankTimes{.rank = rank});
    times.times.steps = *next++;
    for (auto& spent : times.times.spent) spent = std::chrono::nanoseconds(*next++);
    for (int other = 0; other < world.size(); ++other)
      if (next[other] > 0) times.times.waited_for[other] = std::chrono::nanoseconds(next[other]);
  }
  return found;
}

// The launcher's verdict, which must include the phase.
void expect_the_phase_is_found(const ProcessGroup& world, StepPhase slow_in,
                               const StepTimes& times) {
  const std::vector<RankTimes> all = all_times(world, times);
  std::string told = std::string("slow in ") + name(slow_in);
  for (const RankTimes& each : all) told.append("\n").append(describe(each.times));
  const auto found = find_straggler(all, {.steps = 1, .lost = 0ms});
  ASSERT_TRUE(found) << told;
  EXPECT_EQ(found->rank, slow_rank) << told;
  ASSERT_FALSE(found->late_in.empty()) << told;
  EXPECT_EQ(found->late_in.front().first, slow_in) << describe(*found) << told;
}

void expect_the_slow_rank_is_found(const ProcessGroup& world, StepPhase slow_in,
                                   const DistributedDataParallelOptions& options) {
  const StepTimes times = times_of_training(world, slow_in, options);
  const std::string told = std::string("slow in ") + name(slow_in) + ", rank " +
                           std::to_string(world.rank()) + ": " + describe(times);
  EXPECT_EQ(times.steps, steps) << told;
  expect_the_phase_is_found(world, slow_in, times);
  if (world.rank() == slow_rank) {
    EXPECT_GE(times[slow_in], steps * delay) << told;
    return;
  }
  EXPECT_EQ(times.latest_rank(), slow_rank) << told;
  // The last step's delay may cost no other rank time.
  ASSERT_TRUE(times.waited_for.contains(slow_rank)) << told;
  EXPECT_GE(times.waited_for.at(slow_rank), (steps - 1) * delay / 2) << told;
  EXPECT_LT(times[slow_in], times[StepPhase::wait]) << told;
}

void find_slow_ranks(const DistributedDataParallelOptions& options) {
  ProcessGroup world = init_process_group();
  for (const StepPhase phase : {StepPhase::data, StepPhase::forward, StepPhase::backward})
    expect_the_slow_rank_is_found(world, phase, options);
  destroy_process_group(world);
}

const Ranks plain("step times, plain", [](const Rank&) { find_slow_ranks({.overlap = false}); });
const Ranks overlapped("step times, overlapped",
                       [](const Rank&) { find_slow_ranks({.overlap = true}); });
const Ranks shared("step times, shared parameters",
                   [](const Rank&) { find_slow_ranks({.share_parameters = true}); });

// Other activities of a loop are reported too, and accumulation without communication.
const Ranks others("step times, other phases", [](const Rank& rank) {
  ProcessGroup world = init_process_group();
  const auto net = std::make_shared<Net>(StepPhase::backward);
  DistributedDataParallel ddp(net, world);
  const StepTimes before = step_times();
  {
    const auto alone = ddp.no_sync();
    ddp(torch::ones({batch, 16})).sum().backward();
  }
  const StepTimes accumulated = step_times() - before;
  EXPECT_GE(accumulated[StepPhase::backward], delay);
  EXPECT_EQ(accumulated.steps, 0);
  {
    const torch::NoGradGuard no_grad;
    ddp(torch::ones({batch, 16}));
  }
  EXPECT_EQ((step_times() - before)[StepPhase::backward], accumulated[StepPhase::backward]);
  EXPECT_THROW(
      {
        torch::Tensor output = ddp(torch::ones({batch, 16}));
        output.register_hook(
            [](const torch::Tensor&) { throw std::runtime_error("in backward()"); });
        output.sum().backward();
      },
      std::exception);
  ddp(torch::ones({batch, 16})).sum().backward();
  const StepTimes after = step_times();
  be_slow();
  EXPECT_GE((step_times() - after)[StepPhase::other], delay) << "no phase is left behind";

  Checkpointer checkpoints(rank.scratch / "checkpoints", world);
  const auto state = state_of(*net);
  checkpoints.save(1, {{"model", state.get()}});
  checkpoints.wait();
  EXPECT_GT((step_times() - after)[StepPhase::checkpoint].count(), 0);
  destroy_process_group(world);
});

TEST(StepTimes, NameTheRankThatIsSlowAndWhatItIsSlowIn) {
  EXPECT_TRUE(all_succeeded(plain.run(ranks)));
  EXPECT_TRUE(all_succeeded(plain.run(2))) << "with a core for each rank, they wait otherwise";
}

TEST(StepTimes, NameItThoughAThreadReduces) { EXPECT_TRUE(all_succeeded(overlapped.run(ranks))); }

TEST(StepTimes, NameItWithSharedParameters) { EXPECT_TRUE(all_succeeded(shared.run(ranks))); }

TEST(StepTimes, KnowAccumulationEvaluationAndCheckpoints) {
  EXPECT_TRUE(all_succeeded(others.run(2)));
}

}  // namespace
}  // namespace lockstep::train::step_times_test
