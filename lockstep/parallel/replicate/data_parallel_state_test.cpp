// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/comm/in_process.h"
#include "lockstep/optim/optimizer_stateful.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "lockstep/parallel/shard/zero_redundancy_optimizer.h"
#include "lockstep/parallel/shared_parameters/shared_optimizer.h"
#include "lockstep/tensor/module_state.h"
#include "lockstep/tensor/named_tensors.h"
#include "tests/fault_of.h"
#include "tests/saved_state.h"

namespace lockstep::parallel::data_parallel_state_test {
namespace {

using test::catalogue_of;
using test::fault_of;
using test::SavedState;
using torch::optim::AdamOptions;

struct Net : torch::nn::Module {
  explicit Net(int seed) {
    register_module("conv", conv);
    register_module("norm", norm);
    register_module("wide", wide);
    conv->weight.set_data(conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
    const torch::NoGradGuard no_grad;
    double first = seed;
    for (const torch::Tensor& parameter : parameters())
      parameter.copy_(
          torch::sin(torch::arange(parameter.numel()) + first++).mul(0.1).view(parameter.sizes()));
  }

  torch::Tensor forward(const torch::Tensor& x) {
    return wide->forward(torch::relu(norm->forward(conv->forward(x))).flatten(1));
  }

  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(3, 5, 3)};
  torch::nn::BatchNorm2d norm{5};
  torch::nn::Linear wide{5 * 6 * 6, 371};
};

void expect_equal(const NamedTensors& a, const NamedTensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    EXPECT_TRUE(torch::equal(a[i].second, b[i].second)) << a[i].first;
}

struct Training {
  Training(const ProcessGroup& world, bool share)
      : ddp(net, world, {.share_parameters = share}),
        model(state_of(ddp)),
        optimizer(make(world, share)),
        state(state_of(*optimizer, named_parameters(*net))) {}

  std::unique_ptr<ShardedOptimizer> make(const ProcessGroup& world, bool share) {
    const auto options = AdamOptions(1e-2).amsgrad(true);
    if (!share)
      return std::make_unique<ZeroRedundancyOptimizer<Adam>>(net->parameters(), world, options);
    return std::make_unique<SharedOptimizer<Adam>>(ddp, net->parameters(), options);
  }

  // All ranks have the same gradients: their mean is equal for any power of two of ranks.
  void train(int first, int last) {
    for (int step = first; step < last; ++step) {
      optimizer->zero_grad();
      const auto x = torch::cos(torch::arange(4 * 3 * 64) * (0.01 * step + 0.003));
      ddp(x.view({4, 3, 8, 8})).square().mean().backward();
      optimizer->step();
    }
  }

  std::shared_ptr<Net> net = std::make_shared<Net>(7);
  DistributedDataParallel<Net> ddp;
  std::unique_ptr<Stateful> model;
  std::unique_ptr<ShardedOptimizer> optimizer;
  std::unique_ptr<Stateful> state;
};

struct Saved {
  SavedState model;
  SavedState optimizer;
};

void train_on(int ranks, bool share, const Saved* from, int first, int last, Saved& to) {
  run_in_process(ranks, [&](ProcessGroup& world) {
    Training training(world, share);
    if (from != nullptr) {
      test::load(*training.model, from->model.whole());
      test::load(*training.state, from->optimizer.whole());
    }
    training.train(first, last);
    to.model.add(training.model->state_dict(), world.rank());
    to.optimizer.add(training.state->state_dict(), world.rank());
    world.barrier();
  });
}

void expect_same(const StateDict& a, const StateDict& b) {
  EXPECT_EQ(a.values, b.values);
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (const auto& [name, tensor] : a.tensors)
    EXPECT_TRUE(torch::equal(tensor.data, b.tensors.at(name).data)) << name;
}

TEST(DataParallelState, TrainingGoesOnBitForBitWhateverSharesWhatAtAnyNumberOfRanks) {
  Saved undisturbed;
  train_on(1, /*share=*/false, nullptr, 0, 20, undisturbed);

  struct Stage {
    int ranks;
    bool share;
  };
  std::unique_ptr<Saved> saved;
  int step = 0;
  for (const auto& [ranks, share] :
       std::vector<Stage>{{4, true}, {2, true}, {1, true}, {2, false}, {4, true}}) {
    auto next = std::make_unique<Saved>();
    train_on(ranks, share, saved.get(), step, step + 4, *next);
    saved = std::move(next);
    step += 4;
  }
  expect_same(saved->model.whole(), undisturbed.model.whole());
  expect_same(saved->optimizer.whole(), undisturbed.optimizer.whole());
}

TEST(DataParallelState, AFragmentIsAskedForInPartWhereRowsAreInTheOrderOfMemory) {
  Saved saved;
  train_on(2, /*share=*/true, nullptr, 0, 2, saved);
  run_in_process(4, [&](ProcessGroup& world) {
    Training training(world, /*share=*/true);
    const StateRequest request = training.state->wanted(catalogue_of(saved.optimizer.whole()));
    const ElementRange& range = request.at("wide.weight.exp_avg");
    EXPECT_LT(range.end - range.begin, 371 * 5 * 6 * 6 / 2);
    if (const auto of_conv = request.find("conv.weight.exp_avg"); of_conv != request.end()) {
      EXPECT_EQ(of_conv->second.end, 5 * 3 * 3 * 3);
    }
    world.barrier();
  });
}

TEST(DataParallelState, OneRankRequestsEachSharedParameterInPlace) {
  Net source(1);
  const StateDict saved = state_of(source)->state_dict();
  std::mutex mutex;
  std::map<std::string, int> wanted;
  run_in_process(3, [&](ProcessGroup& world) {
    Training training(world, /*share=*/true);
    EXPECT_EQ(fault_of([&] { state_of(*training.net)->wanted(catalogue_of(saved)); }),
              Fault::misuse);
    const StateRequest request = test::load(*training.model, saved);
    for (const auto& [name, range] : request) {
      EXPECT_TRUE(world.rank() == 0 || range.into.defined()) << name;
      const std::lock_guard lock(mutex);
      ++wanted[name];
    }
    expect_equal(named_tensors(*training.net), named_tensors(source));
    training.train(0, 1);
    world.barrier();
  });
  EXPECT_EQ(wanted.size(), saved.tensors.size());
  for (const auto& [name, times] : wanted) EXPECT_EQ(times, 1) << name;
}

TEST(DataParallelState, ReplicasOfTheirOwnAreLoadedByEachRank) {
  Net source(1);
  const StateDict saved = state_of(source)->state_dict();
  run_in_process(2, [&](ProcessGroup& world) {
    Training training(world, /*share=*/false);
    EXPECT_EQ(test::load(*training.model, saved).size(), saved.tensors.size());
    expect_equal(named_tensors(*training.net), named_tensors(source));
    world.barrier();
  });
}

TEST(DataParallelState, BuffersAreRank0s) {
  run_in_process(2, [](ProcessGroup& world) {
    Training training(world, /*share=*/false);
    EXPECT_TRUE(training.model->state_dict().tensors.at("norm.running_var").of_rank_0);
    world.barrier();
  });
}

TEST(DataParallelState, EveryRankRefusesWhatDoesNotFit) {
  Net source(1);
  StateDict saved = state_of(source)->state_dict();
  saved.tensors.erase("wide.bias");
  run_in_process(2, [&](ProcessGroup& world) {
    for (const bool share : {false, true}) {
      Training training(world, share);
      std::string text;
      EXPECT_EQ(fault_of([&] { training.model->wanted(catalogue_of(saved)); }, &text),
                Fault::misuse);
      EXPECT_NE(text.find("wide.bias was not saved"), std::string::npos) << text;
      world.barrier();
    }
  });
}

}  // namespace
}  // namespace lockstep::parallel::data_parallel_state_test
