// Checkpoints and weights of TorchScript modules, and of tensors with a function.

// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/checkpoint/checkpointer.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/fully_sharded/fully_sharded_data_parallel.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "lockstep/parallel/shared_parameters/shared_optimizer.h"
#include "lockstep/tensor/function_module.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/tensor/script_module.h"
#include "lockstep/train/training_state.h"
#include "tests/ranks.h"
#include "tests/rigs/small_script.h"

namespace lockstep::train::script_training_test {
namespace {

namespace fs = std::filesystem;

using test::ScratchDirectory;
using test::small_script;
using torch::optim::SGDOptions;

// A script under DistributedDataParallel, with all that its checkpoints have.
struct Training {
  Training(const ProcessGroup& world, const fs::path& directory)
      : ddp(script, world),
        sgd(ddp.module()->parameters(), SGDOptions(0.125).momentum(0.5)),
        checkpoints(directory, world) {
    state.add("model", ddp);
    state.add("optimizer", sgd, *ddp.module());
  }

  // All ranks have the same samples, so the bits are those of one rank.
  void train(std::int64_t first, std::int64_t last) {
    for (std::int64_t step = first; step < last; ++step) {
      sgd.zero_grad();
      ddp(torch::full({2, 3}, static_cast<double>(step), torch::kFloat))
          .toTensor()
          .pow(2)
          .mean()
          .backward();
      sgd.step();
    }
  }

  torch::jit::Module script = small_script();
  DistributedDataParallel<ScriptModule> ddp;
  torch::optim::SGD sgd;
  Checkpointer checkpoints;
  TrainingState state;
};

TEST(ScriptTraining, GoesOnFromACheckpointOnAnyNumberOfRanks) {
  const ScratchDirectory scratch;
  std::string undisturbed;
  run_in_process(1, [&](ProcessGroup& world) {
    Training training(world, scratch.path() / "undisturbed");
    training.train(0, 6);
    undisturbed = sha256(*training.ddp.module());
  });
  std::int64_t step = 0;
  for (const int ranks : {2, 1, 4}) {
    run_in_process(ranks, [&, step](ProcessGroup& world) {
      Training training(world, scratch.path() / "resumed");
      const auto resumed = training.checkpoints.resume(training.state);
      EXPECT_EQ(resumed ? resumed->step : 0, step);
      training.train(step, step + 2);
      training.checkpoints.save(step + 2, training.state);
      if (step == 4) {
        EXPECT_EQ(sha256(*training.ddp.module()), undisturbed);
        EXPECT_EQ(training.script.attr("calls").toTensor().item<float>(), 6);
      }
    });
    step += 2;
  }
  torch::jit::Module alone = small_script();
  TrainingState state;
  state.add("model", alone);
  load_checkpoint(scratch.path() / "resumed", {state.parts()[0]}, ProcessGroup::self());
  EXPECT_EQ(sha256(ScriptModule(alone)), undisturbed);
}

TEST(ScriptTraining, LoadsAndSavesWeights) {
  const ScratchDirectory scratch;
  const fs::path file = scratch.path() / "weights";
  const torch::jit::Module source = small_script();
  source.attr("bias").toTensor().detach().fill_(3);
  source.attr("calls").toTensor().fill_(7);
  save_weights(source, file);
  const torch::jit::Module target = small_script();
  load_weights(target, file);
  EXPECT_EQ(target.attr("bias").toTensor()[0].item<float>(), 3);
  EXPECT_EQ(target.attr("calls").toTensor().item<float>(), 7);
  for (const bool share : {false, true})
    run_in_process(2, [&](ProcessGroup& world) {
      const torch::jit::Module script = small_script();
      DistributedDataParallel ddp(script, world, {.share_parameters = share});
      load_weights(ddp, file);
      EXPECT_EQ(script.attr("bias").toTensor()[1].item<float>(), 3);
      EXPECT_EQ(script.attr("calls").toTensor().item<float>(), 7);
      world.barrier();
    });
}

// Three steps of Adam. Returns the parameters.
template <class Ddp, class Optimizer>
std::vector<at::Tensor> trained(Ddp& ddp, Optimizer&& adam, const ProcessGroup& world) {
  for (int step = 0; step < 3; ++step) {
    adam.zero_grad();
    ddp(torch::ones({2, 3}) * (world.rank() + 1)).toTensor().pow(2).mean().backward();
    adam.step();
  }
  std::vector<at::Tensor> values;
  for (const at::Tensor& parameter : ddp.module()->parameters())
    values.push_back(parameter.detach().clone());
  world.barrier();
  return values;
}

TEST(ScriptTraining, IsTheSameWithSharedAndWithFullyShardedParameters) {
  run_in_process(2, [](ProcessGroup& world) {
    const auto options = torch::optim::AdamOptions(0.125);
    const auto parameters = [](const auto& ddp) { return ddp.module()->parameters(); };
    DistributedDataParallel own(small_script(), world);
    const auto expected = trained(own, Adam(parameters(own), options), world);
    DistributedDataParallel shared(small_script(), world, {.share_parameters = true});
    const auto of_shared =
        trained(shared, SharedOptimizer<Adam>(shared, parameters(shared), options), world);
    FullyShardedDataParallel sharded(std::make_shared<ScriptModule>(small_script()), world,
                                     {.units = {"layer"}});
    const auto of_sharded =
        trained(sharded, FullyShardedOptimizer<Adam>(sharded, parameters(sharded), options), world);
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(torch::equal(of_shared[i], expected[i]));
      EXPECT_TRUE(torch::equal(of_sharded[i], expected[i]));
      EXPECT_FALSE(
          torch::equal(expected[i], torch::full_like(expected[i], static_cast<double>(i))));
    }
  });
}

TEST(FunctionTraining, LoadsAndSavesWeightsAndState) {
  const ScratchDirectory scratch;
  const auto weight = [] { return torch::ones({3}).requires_grad_(); };
  const at::Tensor mean = torch::full({3}, 2.0F);
  const auto nothing = [] {};
  save_weights(*function_module({{"layer.weight", weight()}}, {{"mean", mean}}, nothing),
               scratch.path() / "weights");
  run_in_process(2, [&](ProcessGroup& world) {
    const at::Tensor trained = torch::zeros({3}).requires_grad_();
    const at::Tensor buffer = torch::zeros({3});
    const auto model =
        function_module({{"layer.weight", trained}}, {{"mean", buffer}}, [=](double factor) {
          buffer.add_(1);
          return trained.sum() * factor;
        });
    DistributedDataParallel ddp(model, world);
    load_weights(ddp, scratch.path() / "weights");
    EXPECT_TRUE(torch::equal(trained, torch::ones({3})));
    ddp(2.0 + world.rank()).backward();
    EXPECT_TRUE(torch::equal(trained.grad(), torch::full({3}, 2.5F)));
    EXPECT_TRUE(torch::equal(buffer, torch::full({3}, 3.0F)));
    TrainingState state;
    state.add("model", ddp);
    Checkpointer(scratch.path() / "checkpoints", world).save(1, state);
    buffer.zero_();
    load_checkpoint(scratch.path() / "checkpoints", state, world);
    EXPECT_TRUE(torch::equal(buffer, torch::full({3}, 3.0F)));
  });
}

}  // namespace
}  // namespace lockstep::train::script_training_test
