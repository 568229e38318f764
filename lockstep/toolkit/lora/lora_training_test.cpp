// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/checkpoint/checkpoint_reader.h"
#include "lockstep/checkpoint/checkpointer.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/nn/layers.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/toolkit/lora/lora.h"
#include "lockstep/toolkit/lora/lora_adapter.h"
#include "lockstep/train/training_state.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"

namespace lockstep::train::lora_training_test {
namespace {

using test::fault_of;

struct Net : torch::nn::Module {
  Net() {
    const torch::NoGradGuard no_grad;
    register_module("in", in);
    register_module("out", out);
    for (const at::Tensor& parameter : parameters())
      parameter.copy_(torch::linspace(-1, 1, parameter.numel()).view_as(parameter));
  }

  at::Tensor forward(const at::Tensor& x) { return out(torch::tanh(in(x))); }

  nn::Linear in{4, 6};
  torch::nn::Linear out{6, 2};
};

class Training {
 public:
  Training(const ProcessGroup& world, const std::filesystem::path& folder)
      : world_(world), checkpoints_(folder, world) {
    const at::Tensor a = net_->in->adapter()->matrices().front().second->weight;
    a.detach().copy_(torch::linspace(0, 1, a.numel()).view_as(a));
    state_.add("lora", lora_);
    state_.add("optimizer", adam_, *net_);
  }

  void steps(int begin, int end) {
    for (int step = begin; step < end; ++step) {
      const at::Tensor all = torch::linspace(0, step + 1, 16).view({4, 4});
      const std::int64_t rows = 4 / world_.size();
      adam_.zero_grad();
      ddp_(all.slice(0, world_.rank() * rows, (world_.rank() + 1) * rows))
          .square()
          .mean()
          .backward();
      adam_.step();
    }
  }

  void save(int step) { checkpoints_.save(step, state_); }
  std::int64_t resume() { return checkpoints_.resume(state_)->step; }
  Net& net() { return *net_; }

 private:
  const ProcessGroup world_;
  std::shared_ptr<Net> net_ = std::make_shared<Net>();
  Lora lora_{*net_, {"in"}, {.rank = 2}};
  DistributedDataParallel<Net> ddp_{net_, world_};
  Adam adam_{lora_.parameters(), torch::optim::AdamOptions(0.01)};
  Checkpointer checkpoints_;
  TrainingState state_;
};

TEST(LoraTraining, OnTwoRanksIsThatOfOneAndContinuesFromItsCheckpoint) {
  const test::ScratchDirectory scratch;
  std::vector<at::Tensor> alone;
  std::vector<std::string> digests(2), resumed(2);
  run_in_process(1, [&](ProcessGroup& world) {
    Training training(world, scratch.path() / "alone");
    training.steps(0, 6);
    alone = training.net().parameters();
  });
  run_in_process(2, [&](ProcessGroup& world) {
    Training training(world, scratch.path() / "two");
    training.steps(0, 3);
    training.save(3);
    training.steps(3, 6);
    const std::vector<at::Tensor> parameters = training.net().parameters();
    for (std::size_t i = 0; i < parameters.size(); ++i)
      EXPECT_TRUE(torch::allclose(parameters[i], alone[i], 1e-5, 1e-6)) << i;
    digests[static_cast<std::size_t>(world.rank())] = sha256(parameters);
  });
  run_in_process(2, [&](ProcessGroup& world) {
    Training training(world, scratch.path() / "two");
    EXPECT_EQ(training.resume(), 3);
    training.steps(3, 6);
    resumed[static_cast<std::size_t>(world.rank())] = sha256(training.net().parameters());
  });
  EXPECT_EQ(digests[0], digests[1]);
  EXPECT_EQ(resumed, digests);
  const CheckpointReader saved(*latest_checkpoint(scratch.path() / "two"));
  EXPECT_EQ(saved.contents("lora").tensors.size(), 2U);
}

// A merge in edit_parameters() would leave the other ranks' adapters.
TEST(LoraTraining, RefusesMergesOfOneRankAndOfSharedWeights) {
  for (const bool shares : {false, true})
    run_in_process(2, [&](ProcessGroup& world) {
      const auto net = std::make_shared<Net>();
      Lora lora(*net, {"in"}, {.rank = 2});
      for (const at::Tensor& parameter : lora.parameters()) parameter.detach().fill_(0.5);
      const at::Tensor x = torch::linspace(0, 1, 8).view({2, 4});
      const at::Tensor before = net->forward(x).detach().clone();
      auto ddp = std::make_unique<DistributedDataParallel<Net>>(
          net, world, DistributedDataParallelOptions{.share_parameters = shares});
      std::string text;
      for (const auto& act : {&Lora::merge, &Lora::remove}) {
        EXPECT_EQ(fault_of([&] { ddp->edit_parameters([&] { (lora.*act)(); }); }, &text),
                  world.rank() == 0 ? Fault::misuse : Fault::aborted);
        EXPECT_NE(text.find("end DistributedDataParallel first"), std::string::npos) << text;
        if (shares) {
          EXPECT_EQ(fault_of([&] { (lora.*act)(); }, &text), Fault::misuse);
        }
        EXPECT_TRUE(torch::equal(net->forward(x), before));
      }
      ddp.reset();
      for (at::Tensor& weight : net->parameters()) weight.set_data(weight.detach().clone());
      lora.merge();
      EXPECT_TRUE(torch::allclose(net->forward(x), before, 1e-4, 1e-5));
    });
}

}  // namespace
}  // namespace lockstep::train::lora_training_test
