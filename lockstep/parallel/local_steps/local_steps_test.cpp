// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/local_steps/local_steps.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/in_process.h"
#include "lockstep/comm/values.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "lockstep/parallel/shard/zero_redundancy_optimizer.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/tensor/tensor_lists.h"
#include "tests/fault_of.h"
#include "tests/saved_state.h"

namespace lockstep::local_steps_test {
namespace {

using test::fault_of;
using test::SavedState;
using torch::nn::SequentialImpl;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;

// Threads share the generator. The first layer has no bias, whose gradient would be rounding
// errors.
std::shared_ptr<SequentialImpl> net(int seed = 0) {
  auto made = std::make_shared<SequentialImpl>(
      torch::nn::Linear(torch::nn::LinearOptions(6, 8).bias(false)), torch::nn::BatchNorm1d(8),
      torch::nn::Linear(8, 4));
  const torch::NoGradGuard no_grad;
  for (auto& weights : made->parameters())
    weights.copy_(torch::arange(weights.numel()).add(seed).view(weights.sizes()).sin().mul(0.5));
  return made;
}

torch::Tensor loss_of(const torch::Tensor& outputs) { return outputs.sub(1).pow(2).mean(); }

torch::Tensor inputs(int rank, std::int64_t step) {
  return torch::arange(30).mul(0.3 + 0.1 * static_cast<double>(step)).add(rank).sin().view({5, 6});
}

void compute_gradients(SequentialImpl& net, int rank, std::int64_t step) {
  net.zero_grad();
  loss_of(net.forward(inputs(rank, step))).backward();
}

std::string weights_of(const SequentialImpl& net) { return sha256(net.parameters()); }

bool equal_on_all(const SequentialImpl& net, const ProcessGroup& group) {
  const auto all = all_gather_bytes(weights_of(net), group);
  return std::all_of(all.begin(), all.end(), [&](const auto& one) { return one == all[0]; });
}

void expect_close(const SequentialImpl& a, const SequentialImpl& b) {
  for (std::size_t i = 0; i < a.parameters().size(); ++i)
    EXPECT_TRUE(torch::allclose(a.parameters()[i], b.parameters()[i], 1e-5, 1e-6)) << i;
}

template <class Steps, class Options>
struct Training {
  Training(const ProcessGroup& world, const Options& options, int seed = 0)
      : rank(world.rank()),
        model(net(seed)),
        adamw(model->parameters(), AdamWOptions(1e-2)),
        steps(*model, adamw, world, options) {}

  bool step() {
    compute_gradients(*model, rank, steps.steps());
    adamw.step();
    return steps.step();
  }

  const int rank;
  const std::shared_ptr<SequentialImpl> model;
  AdamW adamw;
  Steps steps;
};
using LocalTraining = Training<LocalSGD, LocalSGDOptions>;
using DiLoCoTraining = Training<DiLoCo, DiLoCoOptions>;

// --- Post-local SGD ------------------------------------------------------------------------------

TEST(LocalSGD, WithAPeriodOfOneIsDistributedDataParallel) {
  run_in_process(3, [](ProcessGroup& world) {
    const auto options = SGDOptions(0.1).momentum(0.9);
    DistributedDataParallel ddp(net(), world);
    SGD sgd(ddp.module()->parameters(), options);
    const auto model = net(world.rank());  // Rank 0's weights count.
    SGD own(model->parameters(), options);
    LocalSGD local(*model, own, world, {.period = 1});
    for (int step = 0; step < 10; ++step) {
      sgd.zero_grad();
      loss_of(ddp(inputs(world.rank(), step))).backward();
      sgd.step();
      compute_gradients(*model, world.rank(), step);
      own.step();
      EXPECT_TRUE(local.step());
      EXPECT_TRUE(equal_on_all(*model, world));
    }
    expect_close(*model, *ddp.module());
  });
}

// PyTorch's PeriodicModelAverager counts from the first step behind the warm-up.
TEST(LocalSGD, AveragesInTheStepsOfPyTorch) {
  run_in_process(2, [](ProcessGroup& world) {
    LocalTraining training(world, {.period = 3, .warmup_steps = 2});
    for (int step = 0; step < 10; ++step) {
      EXPECT_EQ(training.steps.is_local(), step >= 2);
      const bool averaged = training.step();
      EXPECT_EQ(averaged, step >= 2 && (step - 2) % 3 == 0) << step;
      EXPECT_EQ(equal_on_all(*training.model, world), averaged) << step;
      EXPECT_EQ(training.steps.in_sync(), averaged);
    }
    training.steps.synchronize();
    EXPECT_TRUE(equal_on_all(*training.model, world));
  });
}

TEST(LocalSGD, AveragesGradientsOverAllRanksFirstAndOverASubgroupThen) {
  run_in_process(4, [](ProcessGroup& world) {
    const ProcessGroup pair = world.split(world.rank() / 2);
    DistributedDataParallel ddp(net(), world, {.broadcast_buffers = false});
    SGD sgd(ddp.module()->parameters(), SGDOptions(0.1));
    LocalSGD local(*ddp.module(), sgd, world, {.period = 3, .warmup_steps = 2, .subgroup = pair});
    ddp.register_comm_hook(local.hook());
    for (int step = 0; step < 6; ++step) {
      sgd.zero_grad();
      loss_of(ddp(inputs(world.rank(), step))).backward();
      sgd.step();
      const bool averaged = local.step();
      EXPECT_TRUE(equal_on_all(*ddp.module(), pair)) << step;
      EXPECT_EQ(equal_on_all(*ddp.module(), world), step < 2 || averaged) << step;
    }
  });
}

TEST(LocalSGD, HasTheRanksThatShareMemoryAsSubgroup) {
  run_in_process(2, [](ProcessGroup& world) {
    EXPECT_EQ(host_group(world).size(), 2);
    DistributedDataParallel ddp(net(), world);
    SGD sgd(ddp.module()->parameters(), SGDOptions(0.1));
    LocalSGD local(*ddp.module(), sgd, world, {.period = 100});
    ddp.register_comm_hook(local.hook());
    for (int step = 0; step < 3; ++step) {
      sgd.zero_grad();
      loss_of(ddp(inputs(world.rank(), step))).backward();
      sgd.step();
      local.step();
      EXPECT_TRUE(equal_on_all(*ddp.module(), world));
    }
  });
}

// --- DiLoCo --------------------------------------------------------------------------------------

// In one process, with LibTorch's SGD as outer optimizer.
class SerialDiLoCo {
 public:
  SerialDiLoCo(int ranks, const DiLoCoOptions& options)
      : options_(options),
        outer_(global_->parameters(), SGDOptions(options.outer_lr)
                                          .momentum(options.outer_momentum)
                                          .nesterov(options.nesterov)) {
    for (int rank = 0; rank < ranks; ++rank) {
      models_.push_back(net());
      inner_.push_back(std::make_unique<AdamW>(models_.back()->parameters(), AdamWOptions(1e-2)));
    }
  }

  void step(std::int64_t step, std::size_t begin, std::size_t end) {
    for (std::size_t rank = 0; rank < models_.size(); ++rank) {
      compute_gradients(*models_[rank], static_cast<int>(rank), step);
      inner_[rank]->step();
    }
    const torch::NoGradGuard no_grad;
    outer_.zero_grad();
    for (std::size_t i = begin; i < end; ++i) {
      auto parameter = global_->parameters()[i];
      auto gradient = torch::zeros_like(parameter);
      for (const auto& model : models_) gradient += parameter - model->parameters()[i];
      parameter.mutable_grad() = gradient / static_cast<double>(models_.size());
    }
    outer_.step();
    for (std::size_t i = begin; i < end; ++i)
      for (const auto& model : models_) model->parameters()[i].copy_(global_->parameters()[i]);
  }

  const SequentialImpl& model(int rank) const { return *models_[static_cast<std::size_t>(rank)]; }

 private:
  const DiLoCoOptions options_;
  const std::shared_ptr<SequentialImpl> global_ = net();
  torch::optim::SGD outer_;
  std::vector<std::shared_ptr<SequentialImpl>> models_;
  std::vector<std::unique_ptr<AdamW>> inner_;
};

TEST(DiLoCo, StepsByTheMeanOfHowFarRanksHaveCome) {
  for (const auto& [momentum, nesterov] : {std::pair(0.9, true), {0.9, false}, {0.0, false}})
    run_in_process(3, [&](ProcessGroup& world) {
      const DiLoCoOptions options{
          .sync_every = 3, .outer_momentum = momentum, .nesterov = nesterov};
      SerialDiLoCo serial(3, options);
      DiLoCoTraining training(world, options);
      for (int step = 0; step < 12; ++step) {
        const bool synchronized = step % 3 == 2;
        EXPECT_EQ(training.step(), synchronized);
        EXPECT_EQ(equal_on_all(*training.model, world), synchronized);
        EXPECT_EQ(training.steps.in_sync(), synchronized);
        serial.step(step, 0, synchronized ? 5 : 0);
        expect_close(*training.model, serial.model(world.rank()));
      }
    });
}

// Bytes of the five parameters: 192, 32, 32, 128, 16; the first two are the first half.
TEST(DiLoCo, SynchronizesFragmentsInTurn) {
  run_in_process(2, [](ProcessGroup& world) {
    const DiLoCoOptions options{.sync_every = 4, .fragments = 2};
    SerialDiLoCo serial(2, options);
    DiLoCoTraining training(world, options);
    for (int step = 0; step < 12; ++step) {
      EXPECT_EQ(training.step(), step % 2 == 1);
      EXPECT_FALSE(training.steps.in_sync());
      const auto equal = [&](std::size_t i) {
        const auto all = all_gather_bytes(sha256({training.model->parameters()[i]}), world);
        return all[0] == all[1];
      };
      EXPECT_EQ(equal(0), step % 4 == 1) << step;
      EXPECT_EQ(equal(3), step % 4 == 3) << step;
      if (step % 4 == 1)
        serial.step(step, 0, 2);
      else if (step % 4 == 3)
        serial.step(step, 2, 5);
      else
        serial.step(step, 0, 0);
      expect_close(*training.model, serial.model(world.rank()));
    }
    training.steps.synchronize();
    EXPECT_TRUE(training.steps.in_sync());
    EXPECT_TRUE(equal_on_all(*training.model, world));
  });
}

TEST(DiLoCo, KeepsRanksOfAHostInStepByTheirOwnDistributedDataParallel) {
  run_in_process(4, [](ProcessGroup& world) {
    const ProcessGroup host = world.split(world.rank() / 2);
    DistributedDataParallel ddp(net(), host);
    AdamW adamw(ddp.module()->parameters(), AdamWOptions(1e-2));
    DiLoCo diloco(*ddp.module(), adamw, world, {.sync_every = 3});
    for (int step = 0; step < 6; ++step) {
      adamw.zero_grad();
      loss_of(ddp(inputs(world.rank(), step))).backward();
      adamw.step();
      const bool synchronized = diloco.step();
      EXPECT_TRUE(equal_on_all(*ddp.module(), host)) << step;
      EXPECT_EQ(equal_on_all(*ddp.module(), world), synchronized) << step;
    }
  });
}

// A gradient of zeros would still move weights by the outer momentum.
TEST(DiLoCo, DoesNotSynchronizeWhatHasJustBeenSynchronized) {
  run_in_process(2, [](ProcessGroup& world) {
    for (const std::int64_t fragments : {1, 2})
      for (const int steps : {4, 6, 7}) {
        DiLoCoTraining training(world, {.sync_every = 4, .fragments = fragments});
        for (int step = 0; step < steps; ++step) training.step();
        const auto before = training.model->parameters()[0].clone();
        const auto last = training.model->parameters()[4].clone();
        training.steps.synchronize();
        const bool first_is_due = steps != 4 || fragments != 1;
        const bool was_first = fragments == 2 && steps == 6;
        EXPECT_EQ(torch::equal(before, training.model->parameters()[0]),
                  !first_is_due || was_first);
        EXPECT_EQ(torch::equal(last, training.model->parameters()[4]), steps == 4);
        const std::string weights = weights_of(*training.model);
        training.steps.synchronize();
        EXPECT_EQ(weights_of(*training.model), weights);
        EXPECT_TRUE(equal_on_all(*training.model, world));
      }
  });
}

TEST(LocalSteps, GiveAllRanksTheWeightsOfRank0AndItsBuffersInASynchronization) {
  run_in_process(2, [](ProcessGroup& world) {
    DiLoCoTraining training(world, {.sync_every = 2}, /*seed=*/world.rank());
    EXPECT_TRUE(equal_on_all(*training.model, world));
    const auto buffers_equal = [&] {
      const auto all = all_gather_bytes(sha256(training.model->buffers()), world);
      return all[0] == all[1];
    };
    training.step();
    EXPECT_FALSE(buffers_equal());
    const auto own = training.model->buffers()[0].clone();
    training.step();
    EXPECT_TRUE(buffers_equal());
    EXPECT_FALSE(torch::equal(own, training.model->buffers()[0]));
  });
}

TEST(DiLoCo, SynchronizesBuffersWithItsLastFragment) {
  run_in_process(2, [](ProcessGroup& world) {
    DiLoCoTraining training(world, {.sync_every = 4, .fragments = 2});
    for (int step = 0; step < 8; ++step) {
      training.step();
      const auto all = all_gather_bytes(sha256(training.model->buffers()), world);
      EXPECT_EQ(all[0] == all[1], step % 4 == 3) << step;
    }
  });
}

// --- State --------------------------------------------------------------------------------------

template <class Training, class Options>
void expect_resumed(const Options& options, std::int64_t steps) {
  SavedState saved;
  run_in_process(2, [&](ProcessGroup& world) {
    Training one(world, options);
    while (one.steps.steps() < steps) one.step();
    saved.add(one.steps.state_dict(), world.rank());
    world.barrier();
    Training other(world, options, /*seed=*/7);
    test::load(other.steps, saved.whole());
    EXPECT_EQ(other.steps.steps(), steps);
    EXPECT_EQ(other.steps.in_sync(), one.steps.in_sync());
    for (int step = 0; step < 5; ++step) {
      EXPECT_EQ(weights_of(*one.model), weights_of(*other.model)) << step;
      one.step();
      other.step();
    }
    EXPECT_EQ(weights_of(*one.model), weights_of(*other.model));
  });
}

TEST(LocalSteps, ContinueFromTheirState) {
  expect_resumed<LocalTraining>(LocalSGDOptions{.period = 3}, 2);
  expect_resumed<LocalTraining>(LocalSGDOptions{.period = 3}, 4);
  expect_resumed<DiLoCoTraining>(DiLoCoOptions{.sync_every = 4, .fragments = 2}, 5);
  expect_resumed<DiLoCoTraining>(DiLoCoOptions{.sync_every = 3}, 6);
}

TEST(LocalSteps, ContinueOnAnotherNumberOfRanksFromASynchronization) {
  SavedState saved;
  std::string weights;
  run_in_process(2, [&](ProcessGroup& world) {
    DiLoCoTraining training(world, {.sync_every = 3});
    for (int step = 0; step < 4; ++step) training.step();
    training.steps.synchronize();
    saved.add(training.steps.state_dict(), world.rank());
    if (world.rank() == 0) weights = weights_of(*training.model);
  });
  run_in_process(4, [&](ProcessGroup& world) {
    const ProcessGroup host = world.split(world.rank() / 2);
    DistributedDataParallel ddp(net(), host);
    AdamW adamw(ddp.module()->parameters(), AdamWOptions(1e-2));
    DiLoCo diloco(*ddp.module(), adamw, world, {.sync_every = 3});
    test::load(diloco, saved.whole());
    EXPECT_EQ(weights_of(*ddp.module()), weights);
    for (int step = 0; step < 2; ++step) {
      adamw.zero_grad();
      loss_of(ddp(inputs(world.rank(), step))).backward();
      adamw.step();
      EXPECT_EQ(diloco.step(), step == 1);
      EXPECT_TRUE(equal_on_all(*ddp.module(), host)) << step;
    }
    EXPECT_TRUE(equal_on_all(*ddp.module(), world));
  });
}

TEST(LocalSteps, RefuseAStateBetweenSynchronizationsOnOtherHosts) {
  SavedState saved;
  run_in_process(2, [&](ProcessGroup& world) {
    DiLoCoTraining training(world, {.sync_every = 3});
    for (int step = 0; step < 4; ++step) training.step();
    saved.add(training.steps.state_dict(), world.rank());
  });
  const auto refused = [](int ranks, const StateDict& state, const std::string& why) {
    run_in_process(ranks, [&](ProcessGroup& world) {
      DiLoCoTraining training(world, {.sync_every = 3});
      std::string text;
      EXPECT_EQ(fault_of([&] { test::load(training.steps, state); }, &text), Fault::misuse);
      EXPECT_NE(text.find(why), text.npos) << text;
    });
  };
  refused(3, saved.whole(), "with hosts 0 0, not 0 0 0");
  StateDict of_two_hosts = saved.whole();
  of_two_hosts.values["hosts"] = std::string("0 1");
  refused(2, of_two_hosts, "with hosts 0 1, not 0 0");
}

// --- Errors -------------------------------------------------------------------------------------

TEST(DiLoCo, RefusesOptionsOutOfRange) {
  run_in_process(1, [](ProcessGroup& world) {
    const auto refused = [&](const DiLoCoOptions& options, const std::string& why) {
      std::string text;
      EXPECT_EQ(fault_of([&] { DiLoCoTraining training(world, options); }, &text), Fault::misuse);
      EXPECT_NE(text.find(why), text.npos) << text;
    };
    refused({.sync_every = 100, .fragments = 3}, "is not a multiple of the 3 fragments");
    refused({.sync_every = 0}, "sync_every");
    refused({.fragments = 0}, "fragments");
    refused({.sync_every = 70, .fragments = 7}, "only 5 parameters");
    refused({.outer_lr = 0}, "outer_lr");
    refused({.outer_momentum = 1}, "outer_momentum");
    refused({.outer_momentum = 0}, "nesterov");
  });
}

TEST(LocalSGD, RefusesOptionsOutOfRange) {
  run_in_process(1, [](ProcessGroup& world) {
    EXPECT_EQ(fault_of([&] { LocalTraining training(world, {.period = 0}); }), Fault::misuse);
    EXPECT_EQ(fault_of([&] { LocalTraining training(world, {.warmup_steps = -1}); }),
              Fault::misuse);
  });
}

TEST(LocalSteps, RefuseRanksThatDisagree) {
  run_in_process(2, [](ProcessGroup& world) {
    std::string text;
    EXPECT_EQ(fault_of([&] { DiLoCoTraining training(world, {.sync_every = 100 + world.rank()}); },
                       &text),
              Fault::mismatch);
    EXPECT_NE(text.find("rank 0 has sync_every 100, rank 1 has sync_every 101"), text.npos) << text;
    EXPECT_EQ(fault_of([&] { LocalTraining training(world, {.period = 1 + world.rank()}); }),
              Fault::mismatch);
    world.barrier();  // The group is unaffected.
  });
}

TEST(LocalSGD, RefusesASubgroupThatOnlySomeRanksGive) {
  run_in_process(2, [](ProcessGroup& world) {
    LocalSGDOptions options;
    const ProcessGroup alone = world.split(world.rank());
    if (world.rank() == 1) options.subgroup = alone;
    EXPECT_EQ(fault_of([&] { LocalTraining training(world, options); }), Fault::mismatch);
    world.barrier();
  });
}

TEST(LocalSteps, RefuseAParameterThatIsTrainedLater) {
  run_in_process(2, [](ProcessGroup& world) {
    const auto model = net();
    model->parameters()[0].requires_grad_(false);
    AdamW adamw(model->parameters(), AdamWOptions(1e-2));
    DiLoCo diloco(*model, adamw, world, {.sync_every = 1});
    EXPECT_TRUE(diloco.step());
    model->parameters()[0].requires_grad_(true);
    std::string text;
    EXPECT_EQ(fault_of([&] { diloco.step(); }, &text), Fault::misuse);
    EXPECT_NE(text.find("parameter 0.weight"), text.npos) << text;
  });
}

TEST(LocalSteps, RefuseParametersAndOptimizersThatRanksShare) {
  run_in_process(2, [](ProcessGroup& world) {
    const auto model = net();
    ZeroRedundancyOptimizer<AdamW> zero(model->parameters(), world, AdamWOptions(1e-2));
    EXPECT_EQ(fault_of([&] { DiLoCo diloco(*model, zero, world); }), Fault::unsupported);
    DistributedDataParallel ddp(net(), world, {.share_parameters = true});
    AdamW adamw(ddp.module()->parameters(), AdamWOptions(1e-2));
    EXPECT_EQ(fault_of([&] { DiLoCo diloco(*ddp.module(), adamw, world); }), Fault::misuse);
  });
}

TEST(LocalSteps, NameARankThatIsLostInASynchronization) {
  for (const bool is_diloco : {false, true})
    EXPECT_THROW(run_in_process(3,
                                [&](ProcessGroup& world) {
                                  const auto model = net();
                                  AdamW adamw(model->parameters(), AdamWOptions(1e-2));
                                  std::unique_ptr<LocalSteps> steps;
                                  if (is_diloco)
                                    steps = std::make_unique<DiLoCo>(
                                        *model, adamw, world, DiLoCoOptions{.sync_every = 1});
                                  else
                                    steps = std::make_unique<LocalSGD>(
                                        *model, adamw, world, LocalSGDOptions{.period = 1});
                                  compute_gradients(*model, world.rank(), 0);
                                  adamw.step();
                                  if (world.rank() == 1) throw std::runtime_error("lost");
                                  const std::string before = weights_of(*model);
                                  EXPECT_EQ(fault_of([&] { steps->step(); }), Fault::peer_lost);
                                  EXPECT_EQ(weights_of(*model), before);
                                  EXPECT_EQ(steps->steps(), 0);
                                }),
                 std::runtime_error);
}

TEST(LocalSteps, StayAsTheyWereWhenARankIsLostBeforeTheBuffers) {
  EXPECT_THROW(run_in_process(3,
                              [](ProcessGroup& world) {
                                DiLoCoTraining training(world, {.sync_every = 1});
                                training.step();
                                compute_gradients(*training.model, world.rank(), 1);
                                training.adamw.step();
                                if (world.rank() == 1) {
                                  std::vector<at::Tensor> means;
                                  for (const auto& weights : training.model->parameters())
                                    means.push_back(torch::zeros_like(weights));
                                  all_reduce_coalesced(means, world, ReduceOp::average,
                                                       {.label = "DiLoCo, step 2"});
                                  throw std::runtime_error("lost");
                                }
                                const auto bits = [&] {
                                  const StateDict state = training.steps.state_dict();
                                  std::vector<at::Tensor> tensors;
                                  for (const auto& [name, tensor] : state.tensors)
                                    tensors.push_back(tensor.data);
                                  return sha256(tensors);
                                };
                                const std::string before = bits();
                                EXPECT_EQ(fault_of([&] { training.steps.step(); }),
                                          Fault::peer_lost);
                                EXPECT_EQ(bits(), before);
                                EXPECT_EQ(training.steps.steps(), 1);
                              }),
               std::runtime_error);
}

}  // namespace
}  // namespace lockstep::local_steps_test
