// Resumes trainings in other processes and on other numbers of ranks.

// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/allclose.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/checkpointer.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/fully_sharded/fully_sharded_data_parallel.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "lockstep/parallel/shard/zero_redundancy_optimizer.h"
#include "lockstep/parallel/shared_parameters/shared_optimizer.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/toolkit/schedules/lr_scheduler.h"
#include "lockstep/toolkit/schedules/schedules.h"
#include "lockstep/train/training_state.h"
#include "tests/ranks.h"

namespace lockstep::train::resumed_training_test {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t all_steps = 12;

// Sends gradients as bfloat16 and adds this rank's rounding error to the next ones. Errors are
// stored by name, because rebuilding buckets moves parameters.
class ErrorFeedback final : public Stateful {
 public:
  explicit ErrorFeedback(int rank) : prefix_("rank." + std::to_string(rank) + ".") {}

  void operator()(GradientBucket& bucket) {
    for (const auto& [name, gradient] : bucket.gradients) {
      at::Tensor& lost = lost_[prefix_ + name];
      const at::Tensor wanted = lost.defined() ? gradient + lost : gradient.clone();
      gradient.copy_(wanted.to(at::kBFloat16));
      lost = wanted - gradient;
    }
    all_reduce(bucket.buffer, bucket.group, ReduceOp::average, {.label = bucket.label});
  }

  StateDict state_dict() override {
    StateDict state;
    for (const auto& [name, lost] : lost_) state.tensors[name] = whole(lost);
    return state;
  }
  StateRequest wanted(const StateDict& saved) override {
    StateRequest request;
    for (const auto& [name, tensor] : saved.tensors)
      if (name.starts_with(prefix_)) request[name].end = tensor.data.numel();
    return request;
  }
  void load_state_dict(StateDict state) override {
    for (const auto& [name, tensor] : state.tensors) lost_[name] = tensor.data;
  }

 private:
  const std::string prefix_;
  std::map<std::string, at::Tensor> lost_;
};

enum class Kind { plain, hook, zero, shared, without_dropout };

struct Training {
  Training(const ProcessGroup& world, Kind kind)
      : group(world),
        model(std::make_shared<torch::nn::SequentialImpl>(
            torch::nn::Linear(6, 37), torch::nn::Dropout(kind == Kind::without_dropout ? 0. : 0.3),
            torch::nn::Linear(37, 5))),
        ddp(model, world, {.share_parameters = kind == Kind::shared}),
        feedback(world.rank()),
        sampler(kind == Kind::without_dropout ? 108 : 101, world, {.seed = 3}) {
    const auto options = torch::optim::AdamWOptions(1e-2).amsgrad(true);
    if (kind == Kind::zero)
      optimizer =
          std::make_unique<ZeroRedundancyOptimizer<AdamW>>(model->parameters(), world, options);
    else if (kind == Kind::shared)
      optimizer = std::make_unique<SharedOptimizer<AdamW>>(ddp, model->parameters(), options);
    else
      optimizer = std::make_unique<AdamW>(model->parameters(), options);
    warm_up.emplace(*optimizer, LinearLROptions{.total_iters = 3});
    cosine.emplace(*optimizer, CosineAnnealingLROptions{.T_max = 20});
    schedule.emplace(*optimizer, std::vector<LRScheduler*>{&*warm_up, &*cosine},
                     std::vector<std::int64_t>{3});
    if (kind == Kind::hook)
      ddp.register_comm_hook([this](GradientBucket& bucket) { feedback(bucket); });

    state.add("model", ddp);
    state.add("optimizer", *optimizer, *model);
    state.add("schedule", *schedule);
    state.add("sampler", sampler);
    state.add("generators", RandomGenerators(world));
    state.add("step", step);
    if (kind == Kind::hook) state.add("hook", feedback);
  }

  // A sample is its own index, so no dataset is needed.
  void train(std::int64_t last, Checkpointer* checkpoints = nullptr) {
    for (auto epoch = sampler.epoch(); step < last; ++epoch) {
      sampler.set_epoch(epoch);
      sampler.reset();
      while (const auto batch = sampler.next(12 / static_cast<std::size_t>(group.size()))) {
        if (step == last) break;
        train_on(*batch);
        if (checkpoints != nullptr) checkpoints->save(step, state);
      }
    }
  }

  void train_on(const std::vector<std::size_t>& batch) {
    const at::Tensor index = torch::tensor(std::vector<std::int64_t>(batch.begin(), batch.end()));
    const at::Tensor input = (index.unsqueeze(1) * torch::arange(1, 7)).to(at::kFloat).sin();
    optimizer->zero_grad();
    torch::nn::functional::cross_entropy(ddp(input), index.remainder(5)).backward();
    optimizer->step();
    schedule->step();
    sampler.consume(batch.size());
    ++step;
  }

  const ProcessGroup group;
  std::shared_ptr<torch::nn::SequentialImpl> model;
  DistributedDataParallel<torch::nn::SequentialImpl> ddp;
  ErrorFeedback feedback;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::optional<LinearLR> warm_up;
  std::optional<CosineAnnealingLR> cosine;
  std::optional<SequentialLR> schedule;
  DistributedSampler sampler;
  std::int64_t step = 0;
  TrainingState state;
};

fs::path folder_of(const test::Rank& rank, Kind kind) {
  return rank.scratch / std::to_string(static_cast<int>(kind));
}

// Saves each step in the background, and the digest of the weights.
void train_and_save(const test::Rank& rank, Kind kind) {
  ProcessGroup world = init_process_group();
  torch::manual_seed(world.rank());
  {
    Training training(world, kind);
    Checkpointer checkpoints(folder_of(rank, kind), world, {.async = true});
    training.train(all_steps, &checkpoints);
    checkpoints.wait();
    if (world.rank() == 0)
      std::ofstream(folder_of(rank, kind) / "digest") << sha256(*training.model);
  }
  destroy_process_group(world);
}

void resume_all(const test::Rank& rank, Kind kind) {
  ProcessGroup world = init_process_group();
  std::string expected;
  std::ifstream(folder_of(rank, kind) / "digest") >> expected;
  ASSERT_EQ(expected.size(), 64u);
  for (std::int64_t from = 1; from <= all_steps; ++from) {
    torch::manual_seed(99);
    Training training(world, kind);
    const auto all = list_checkpoints(folder_of(rank, kind));
    load_checkpoint(all.at(static_cast<std::size_t>(all_steps - from)), training.state, world);
    ASSERT_EQ(training.step, from);
    training.train(all_steps);
    EXPECT_EQ(sha256(*training.model), expected) << "from step " << from;
  }
  destroy_process_group(world);
}

std::vector<at::Tensor> weights_of(const Training& training) {
  std::vector<at::Tensor> weights;
  for (const auto& [name, weight] : named_parameters(*training.model))
    weights.push_back(weight.detach().clone());
  return weights;
}

// Four ranks train on whole batches. Two continue from step 5 to 8, and three to the end.
void change_ranks(const test::Rank& rank) {
  ProcessGroup world = init_process_group();
  torch::manual_seed(1);
  {
    Training undisturbed(world, Kind::without_dropout);
    Checkpointer checkpoints(rank.scratch / "4", world);
    undisturbed.train(all_steps, &checkpoints);
    const auto expected = weights_of(undisturbed);

    fs::path from = rank.scratch / "4" / "step-0000000005";
    for (const auto& [ranks, until] :
         {std::pair(2, 8), std::pair(3, static_cast<int>(all_steps))}) {
      std::vector<int> some(static_cast<std::size_t>(ranks));
      std::iota(some.begin(), some.end(), 0);
      const auto fewer = world.new_group(some);
      if (fewer) {
        Training resumed(*fewer, Kind::without_dropout);
        load_checkpoint(from, resumed.state, *fewer);
        Checkpointer next(rank.scratch / std::to_string(ranks), *fewer);
        resumed.train(until, &next);
        const auto found = weights_of(resumed);
        for (std::size_t i = 0; until == all_steps && i < found.size(); ++i)
          EXPECT_TRUE(at::allclose(found[i], expected[i], 0, 1e-4)) << i;
      }
      world.barrier();
      const std::string step = std::to_string(until);
      from = rank.scratch / std::to_string(ranks) /
             ("step-" + std::string(10 - step.size(), '0') + step);
    }
  }
  destroy_process_group(world);
}

void train_then_resume(const test::Rank& rank, Kind kind) {
  train_and_save(rank, kind);
  resume_all(rank, kind);
}

// Fully sharded, with float or bfloat16 parameters.
struct Halved {
  Halved(const ProcessGroup& world, std::optional<at::ScalarType> type)
      : fsdp(net, world, {.param_type = type}),
        adamw(fsdp, net->parameters(), torch::optim::AdamWOptions(1e-2)) {
    state.add("model", fsdp);
    state.add("optimizer", adamw, *net);
  }

  void train(std::int64_t first, std::int64_t end) {
    for (std::int64_t step = first; step < end; ++step) {
      adamw.zero_grad();
      const auto type = net->parameters().front().scalar_type();
      const auto inputs = torch::arange(80).view({4, 20}).add(step).sin().to(type);
      fsdp(inputs).to(at::kFloat).square().sum().backward();
      adamw.step();
    }
  }

  torch::nn::Sequential net{torch::nn::Linear(20, 33), torch::nn::Linear(33, 5)};
  FullyShardedDataParallel<torch::nn::SequentialImpl> fsdp;
  FullyShardedOptimizer<AdamW> adamw;
  TrainingState state;
};

void resume_halved(const test::Rank& rank) {
  auto world = init_process_group();
  Checkpointer checkpoints(rank.scratch / "halved", world);
  Halved first(world, at::kBFloat16);
  first.train(0, 4);
  checkpoints.save(4, first.state);
  first.train(4, all_steps);
  Halved resumed(world, at::kBFloat16);
  EXPECT_EQ(checkpoints.resume(resumed.state)->step, 4);
  resumed.train(4, all_steps);
  EXPECT_EQ(sha256(*resumed.net), sha256(*first.net));

  Halved whole(world, {});  // And back.
  EXPECT_EQ(checkpoints.resume(whole.state)->step, 4);
  whole.train(4, 6);
  checkpoints.save(6, whole.state);
  Halved again(world, at::kBFloat16);
  EXPECT_EQ(checkpoints.resume(again.state)->step, 6);
  again.train(6, 7);
  destroy_process_group(world);
}

const test::Ranks halved("one with float masters is resumed", resume_halved);
const test::Ranks changing("ranks change", change_ranks);
const test::Ranks plain("a plain training is resumed",
                        [](const test::Rank& rank) { train_then_resume(rank, Kind::plain); });
const test::Ranks hook("one with a hook is resumed",
                       [](const test::Rank& rank) { train_then_resume(rank, Kind::hook); });
const test::Ranks zero("one with ZeRO is resumed",
                       [](const test::Rank& rank) { train_then_resume(rank, Kind::zero); });
const test::Ranks shared("one with shared weights is resumed",
                         [](const test::Rank& rank) { train_then_resume(rank, Kind::shared); });

TEST(ResumedTraining, IsTheOneThatNeverStoppedBitForBit) {
  for (const int ranks : {1, 2, 3}) EXPECT_TRUE(test::all_succeeded(plain.run(ranks))) << ranks;
}

TEST(ResumedTraining, OnOtherNumbersOfRanksComesToTheSameWeights) {
  EXPECT_TRUE(test::all_succeeded(changing.run(4)));
}

TEST(ResumedTraining, WithACommunicationHookThatRemembersIsTheSame) {
  for (const int ranks : {2, 4}) EXPECT_TRUE(test::all_succeeded(hook.run(ranks))) << ranks;
}

TEST(ResumedTraining, WithStateSpreadOverTheRanksIsTheSame) {
  EXPECT_TRUE(test::all_succeeded(zero.run(3)));
  EXPECT_TRUE(test::all_succeeded(shared.run(4)));
}

TEST(ResumedTraining, WithFloatMastersOfBfloat16ParametersIsTheSame) {
  for (const int ranks : {1, 2, 4}) EXPECT_TRUE(test::all_succeeded(halved.run(ranks))) << ranks;
}

}  // namespace
}  // namespace lockstep::train::resumed_training_test
