// tests/python/optimizers_test.py compares averages with Python's.

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/average/averaged_model.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <chrono>
#include <csignal>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/comm/in_process.h"
#include "lockstep/nn/sync_batch_norm.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/fully_sharded/fully_sharded_data_parallel.h"
#include "lockstep/parallel/shared_parameters/shared_optimizer.h"
#include "lockstep/tensor/module_state.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/tensor/script_module.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"
#include "tests/rigs/small_script.h"
#include "tests/saved_state.h"

namespace lockstep::parallel::averaged_model_test {
namespace {

using test::fault_of;
using test::Rank;
using test::Ranks;
using torch::optim::SGDOptions;

struct Net : torch::nn::Module {
  Net() {
    register_module("conv", conv);
    register_module("norm", norm);
    register_module("wide", wide);
    conv->weight.set_data(conv->weight.contiguous(at::MemoryFormat::ChannelsLast));
    register_parameter("again", wide->bias);
    // Ranks may be threads, which share the default generator.
    const torch::Generator generator = at::make_generator<at::CPUGeneratorImpl>(5);
    for (const torch::Tensor& parameter : parameters()) {
      const torch::NoGradGuard no_grad;
      parameter.uniform_(-0.1, 0.1, generator);
    }
  }

  torch::Tensor forward(const torch::Tensor& x) {
    return wide->forward(torch::relu(norm->forward(conv->forward(x))).flatten(1));
  }

  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(3, 5, 3)};
  torch::nn::BatchNorm2d norm{5};
  torch::nn::Linear wide{5 * 6 * 6, 371};
};

torch::Tensor inputs(int seed) {
  return torch::cos(torch::arange(4 * 3 * 64) * (0.01 * seed + 0.003)).view({4, 3, 8, 8});
}

std::vector<torch::Tensor> copies(const NamedTensors& tensors) {
  std::vector<torch::Tensor> result;
  for (const auto& [name, tensor] : tensors) result.push_back(tensor.detach().clone());
  return result;
}

std::vector<torch::Tensor> once(const Net& net) {
  return {net.conv->weight, net.conv->bias,   net.norm->weight,
          net.norm->bias,   net.wide->weight, net.wide->bias};
}

template <class Ddp>
struct Training {
  template <class... Options>
  explicit Training(const ProcessGroup& world, const Options&... options)
      : net(std::make_shared<Net>()), ddp(net, world, options...) {}

  template <class Optimizer>
  void run(Optimizer& optimizer, AveragedModel& averaged, int first, int last) {
    for (int step = first; step < last; ++step) {
      optimizer.zero_grad();
      ddp(inputs(10 * step + ddp.group().rank())).square().mean().backward();
      optimizer.step();
      averaged.update();
    }
  }

  std::vector<torch::Tensor> averages(AveragedModel& averaged) {
    std::vector<torch::Tensor> result;
    averaged.with_averages([&] { result = copies(named_tensors(*net)); });
    return result;
  }

  std::shared_ptr<Net> net;
  Ddp ddp;
};

void expect_close(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    EXPECT_TRUE(torch::allclose(a[i].to(torch::kFloat), b[i].to(torch::kFloat), 1e-6, 1e-8)) << i;
}

void expect_equal(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(torch::equal(a[i], b[i])) << i;
}

using Replicas = Training<DistributedDataParallel<Net>>;
using FullySharded = Training<FullyShardedDataParallel<Net>>;
const SGDOptions sgd_options = SGDOptions(0.3).momentum(0.9);

template <class Sharded, class Options>
void expect_averages_of_replicas(const ProcessGroup& world, const AveragingRule& rule,
                                 const Options& options) {
  Replicas plain(world);
  Sharded sharded(world, options);
  SGD plain_sgd(once(*plain.net), sgd_options);
  SharedOptimizer<SGD> sharded_sgd(sharded.ddp, once(*sharded.net), sgd_options);
  AveragedModel plain_averages(plain.ddp, rule);
  AveragedModel sharded_averages(sharded.ddp, rule);
  plain.run(plain_sgd, plain_averages, 0, 4);
  sharded.run(sharded_sgd, sharded_averages, 0, 4);

  const auto weights = copies(named_tensors(*sharded.net));
  const auto expected = plain.averages(plain_averages);
  EXPECT_FALSE(torch::equal(expected.front(), weights.front()));
  expect_close(sharded.averages(sharded_averages), expected);
  expect_equal(copies(named_tensors(*sharded.net)), weights);

  std::int64_t held = 0, whole = 0;
  for (const auto& [name, tensor] : sharded_averages.state_dict().tensors)
    if (!tensor.of_rank_0) held += tensor.data.numel();
  for (const torch::Tensor& parameter : once(*sharded.net)) whole += parameter.numel();
  EXPECT_LE(held, whole / world.size() + 64);

  plain.run(plain_sgd, plain_averages, 4, 6);
  sharded.run(sharded_sgd, sharded_averages, 4, 6);
  sharded_averages.apply();
  expect_close(copies(named_tensors(*sharded.net)), plain.averages(plain_averages));
  EXPECT_EQ(sharded_averages.updates(), 6);
}

const Ranks in_parts("averages in parts", [](const Rank&) {
  torch::set_num_threads(1);
  ProcessGroup world = init_process_group();
  expect_averages_of_replicas<Replicas>(world, ema(0.8),
                                        DistributedDataParallelOptions{.share_parameters = true});
  expect_averages_of_replicas<FullySharded>(world, swa(), FullyShardedOptions{.units = {"conv"}});
  destroy_process_group(world);
});

TEST(AveragedModel, MatchesReplicasInPartsForSharedParameters) {
  for (const int ranks : {1, 2, 3}) EXPECT_TRUE(all_succeeded(in_parts.run(ranks))) << ranks;
}

const DistributedDataParallelOptions sharing{.share_parameters = true};

// The lost rank's parts remain averages.
template <class Sharded, class Options>
void lose_rank_1_in_use(const Rank& rank, const Options& options) {
  torch::set_num_threads(1);
  ProcessGroup world = init_process_group();
  Sharded sharded(world, options);
  AveragedModel averaged(sharded.ddp, ema());
  averaged.update();
  sharded.ddp.edit_parameters([&] { sharded.net->wide->weight.fill_(1); });
  const auto loses_one = [&] {
    averaged.with_averages([&] {
      EXPECT_LT(sharded.net->wide->weight.max().template item<float>(), 1);
      world.barrier();
      if (rank.rank == 1) ::raise(SIGKILL);
    });
  };
  EXPECT_FALSE(sharded.ddp.has_partially_updated_parameters());
  EXPECT_EQ(fault_of(loses_one), Fault::peer_lost);
  EXPECT_TRUE(sharded.ddp.has_partially_updated_parameters());
  averaged.update();
  const StateDict state = averaged.state_dict();
  const auto part = state.tensors.find("wide.weight");
  ASSERT_NE(part, state.tensors.end());
  EXPECT_LT(part->second.data.max().template item<float>(), 0.11);
  EXPECT_GT(part->second.data.min().template item<float>(), -0.1);
  EXPECT_EQ(fault_of([&] { sharded.ddp(inputs(1)); }), Fault::corrupt);
}

const Ranks lost_sharing("a rank is lost in use, sharing",
                         [](const Rank& rank) { lose_rank_1_in_use<Replicas>(rank, sharing); });
const Ranks lost_fully_sharded("a rank is lost in use, fully sharded", [](const Rank& rank) {
  lose_rank_1_in_use<FullySharded>(rank, FullyShardedOptions{});
});

TEST(AveragedModel, ARankLostDuringUseLeavesTornWeights) {
  for (const Ranks* const ranks : {&lost_sharing, &lost_fully_sharded}) {
    const auto exits = ranks->run(3);
    EXPECT_EQ(exits[1].signal, SIGKILL);
    for (const std::size_t survivor : {0U, 2U})
      EXPECT_EQ(exits[survivor].code, 0) << exits[survivor].output;
  }
}

const Ranks of_masters("averages of masters", [](const Rank&) {
  torch::set_num_threads(1);
  ProcessGroup world = init_process_group();
  Training<FullyShardedDataParallel<Net>> sharded(
      world, FullyShardedOptions{.units = {"conv"}, .param_type = torch::kBFloat16});
  AveragedModel averaged(sharded.ddp, ema(0.5));
  averaged.update();
  sharded.ddp.edit_parameters([&] { sharded.net->wide->bias.fill_(1); });
  averaged.update();
  const auto state = averaged.state_dict();
  if (const auto bias = state.tensors.find("again"); bias != state.tensors.end()) {
    EXPECT_EQ(bias->second.data.scalar_type(), torch::kFloat);
  }
  const torch::Tensor weights = sharded.net->wide->bias.detach().clone();
  averaged.with_averages([&] {
    const torch::Tensor bias = sharded.net->wide->bias.to(torch::kFloat);
    EXPECT_LE((bias - 0.5).abs().max().item<float>(), 0.06);
    EXPECT_FALSE(torch::equal(sharded.net->wide->bias, weights));
  });
  EXPECT_TRUE(torch::equal(sharded.net->wide->bias, weights));
  destroy_process_group(world);
});

TEST(AveragedModel, HasTheTypeOfItsMasterWeights) { EXPECT_TRUE(all_succeeded(of_masters.run(2))); }

TEST(AveragedModel, IsSavedAndLoadedByAnyNumberOfRanksAndReplicas) {
  test::SavedState saved;
  std::vector<torch::Tensor> expected;
  const auto trained = [](Replicas& training, AveragedModel& averaged, int steps) {
    SharedOptimizer<SGD> sgd(training.ddp, once(*training.net), sgd_options);
    training.run(sgd, averaged, 0, steps);
  };
  run_in_process(3, [&](ProcessGroup& world) {
    Replicas training(world, sharing);
    AveragedModel averaged(training.ddp, ema(0.9));
    trained(training, averaged, 3);
    saved.add(averaged.state_dict(), world.rank());
    const auto averages = training.averages(averaged);
    if (world.rank() == 0) expected = averages;
    world.barrier();
  });
  run_in_process(2, [&](ProcessGroup& world) {
    Replicas training(world, sharing);
    AveragedModel averaged(training.ddp, ema(0.9));
    trained(training, averaged, 1);
    test::load(averaged, saved.whole());
    EXPECT_EQ(averaged.updates(), 3);
    expect_equal(training.averages(averaged), expected);
    world.barrier();
  });
  const auto net = std::make_shared<Net>();
  AveragedModel alone(*net, ema(0.9));
  test::load(alone, saved.whole());
  alone.apply();
  expect_equal(copies(named_tensors(*net)), expected);

  const torch::nn::Linear other(3, 2);
  AveragedModel averaged(*other, swa());
  std::string text;
  EXPECT_EQ(fault_of([&] { averaged.wanted(saved.whole()); }, &text), Fault::misuse);
  EXPECT_NE(text.find("the average of weight was not saved"), text.npos) << text;
  StateDict negative = saved.whole();
  negative.values.insert_or_assign("updates", std::int64_t{-1});
  EXPECT_EQ(fault_of([&] { alone.wanted(negative); }), Fault::misuse);
}

TEST(AveragedModel, TheFirstUpdateCopiesAndLaterOnesAverage) {
  const torch::nn::Linear layer(2, 2);
  const torch::NoGradGuard no_grad;
  AveragedModel exponential(*layer, ema(0.75)), equal(*layer, swa());
  const auto average_of = [&](AveragedModel& averaged) {
    float value = 0;
    averaged.with_averages([&] { value = layer->weight[0][0].item<float>(); });
    return value;
  };
  for (const float value : {8.0F, 16.0F, 4.0F}) {
    layer->weight.fill_(value);
    exponential.update();
    equal.update();
  }
  EXPECT_FLOAT_EQ(average_of(exponential), 0.75F * (0.75F * 8 + 0.25F * 16) + 0.25F * 4);
  EXPECT_FLOAT_EQ(average_of(equal), 28.0F / 3);
  EXPECT_EQ(layer->weight[0][0].item<float>(), 4);
}

TEST(AveragedModel, GivesTheWeightsBackAfterAnExceptionAndKeepsItsBuffersApart) {
  Net net;
  AveragedModel averaged(net, ema());
  const torch::Tensor weights = net.conv->weight.detach().clone();
  {
    const torch::NoGradGuard no_grad;
    net.conv->weight.add_(1);
    averaged.update();
    net.conv->weight.copy_(weights);
  }
  EXPECT_THROW(averaged.with_averages([&] {
    EXPECT_FALSE(torch::equal(net.conv->weight, weights));
    net.norm->running_mean.fill_(7);
    EXPECT_EQ(fault_of([&] { averaged.update(); }), Fault::misuse);
    EXPECT_EQ(fault_of([&] { averaged.apply(); }), Fault::misuse);
    EXPECT_EQ(fault_of([&] { averaged.load_state_dict({}); }), Fault::misuse);
    EXPECT_EQ(fault_of([&] { averaged.with_averages([] {}); }), Fault::misuse);
    throw std::runtime_error("a test");
  }),
               std::runtime_error);
  EXPECT_TRUE(torch::equal(net.conv->weight, weights));
  EXPECT_EQ(net.norm->running_mean.abs().max().item<float>(), 0);
  averaged.with_averages([&] { EXPECT_EQ(net.norm->running_mean[0].item<float>(), 7); });
}

TEST(AveragedModel, AnExceptionOfOneRankReachesAllThatShareWeightsAndTheseAreBack) {
  run_in_process(2, [](ProcessGroup& world) {
    Replicas training(world, sharing);
    AveragedModel averaged(training.ddp, ema());
    averaged.update();
    training.ddp.edit_parameters([&] { training.net->wide->weight.fill_(1); });
    const auto weights = copies(named_tensors(*training.net));
    const auto expect_faults = [&](Fault on_rank_1, const std::string& part_of_text,
                                   const std::function<void()>& use) {
      std::string text;
      const auto with_averages = [&] {
        averaged.with_averages([&] {
          if (world.rank() == 1) use();
        });
      };
      EXPECT_EQ(fault_of(with_averages, &text), world.rank() == 1 ? on_rank_1 : Fault::aborted);
      EXPECT_NE(text.find(part_of_text), text.npos) << text;
      EXPECT_FALSE(training.ddp.has_partially_updated_parameters());
      expect_equal(copies(named_tensors(*training.net)), weights);
      world.barrier();
    };
    expect_faults(Fault::system, "no more room",
                  [] { throw Error(Fault::system, "no more room"); });
    expect_faults(Fault::misuse, "conv.bias is shared by all ranks but was written", [&] {
      const torch::NoGradGuard no_grad;
      training.net->conv->bias.mul_(1);
    });
    training.ddp(inputs(1));
    world.barrier();
  });
}

TEST(AveragedModel, AnExceptionOfOneRankDuringUseLeavesTornWeights) {
  const auto run = [](ProcessGroup& world) {
    Replicas training(world, sharing);
    AveragedModel averaged(training.ddp, ema());
    std::string text;
    const auto with_averages = [&] {
      averaged.with_averages([&] {
        if (world.rank() == 1) throw Error(Fault::system, "no more room");
        world.barrier();
      });
    };
    EXPECT_EQ(fault_of(with_averages, &text), world.rank() == 1 ? Fault::system : Fault::mismatch);
    EXPECT_NE(text.find(world.rank() == 1 ? "no more room" : "the end of with_averages()"),
              text.npos)
        << text;
    EXPECT_TRUE(training.ddp.has_partially_updated_parameters());
  };
  EXPECT_EQ(fault_of([&] { run_in_process(2, run); }), Fault::mismatch);
}

TEST(AveragedModel, FollowsParametersThatGetOtherMemory) {
  const torch::nn::Linear layer(2, 2);
  AveragedModel averaged(*layer, swa());
  layer->weight.set_data(torch::full({2, 2}, 3.0F));
  averaged.update();
  layer->weight.set_data(torch::full({2, 2}, 5.0F));
  averaged.apply();
  EXPECT_EQ(layer->weight[0][0].item<float>(), 3);
}

TEST(AveragedModel, RefusesDecaysAndParametersThatItCannotAverage) {
  EXPECT_EQ(fault_of([] { ema(1.5); }), Fault::misuse);
  EXPECT_EQ(fault_of([] { ema(-0.1); }), Fault::misuse);
  run_in_process(2, [](ProcessGroup& world) {
    Replicas training(world, DistributedDataParallelOptions{.share_parameters = true});
    EXPECT_EQ(fault_of([&] { AveragedModel(*training.net, ema()); }), Fault::misuse);
    world.barrier();
  });
}

// --- Statistics of BatchNorm ---------------------------------------------------------------------

struct Statistics {
  torch::Tensor mean, variance;
  std::int64_t batches;
};

Statistics statistics_of(Net& net, const std::vector<int>& seeds,
                         const ProcessGroup& group = ProcessGroup::self()) {
  update_bn(
      net,
      [&] {
        EXPECT_TRUE(net.norm->is_training());
        for (const int seed : seeds) net.forward(inputs(seed));
      },
      group);
  return {net.norm->running_mean.clone(), net.norm->running_var.clone(),
          net.norm->num_batches_tracked.item<std::int64_t>()};
}

TEST(UpdateBn, GivesMeansOverBatchesAndRestoresTheRest) {
  Net net;
  net.eval();
  net.norm->running_mean.fill_(100);
  std::vector<torch::Tensor> means, variances;
  for (const int seed : {1, 2, 3}) {
    const torch::Tensor values = net.conv->forward(inputs(seed)).detach();
    means.push_back(values.mean({0, 2, 3}));
    variances.push_back(values.var({0, 2, 3}));
  }
  const Statistics found = statistics_of(net, {1, 2, 3});
  EXPECT_TRUE(torch::allclose(found.mean, torch::stack(means).mean(0), 1e-5, 1e-6));
  EXPECT_TRUE(torch::allclose(found.variance, torch::stack(variances).mean(0), 1e-5, 1e-6));
  EXPECT_EQ(found.batches, 3);
  EXPECT_FALSE(net.is_training());
  EXPECT_EQ(net.norm->options.momentum(), 0.1);
}

TEST(UpdateBn, MatchesOneRankWithAllBatches) {
  Net alone;
  const Statistics expected = statistics_of(alone, {1, 2, 3, 4});
  run_in_process(2, [&](ProcessGroup& world) {
    Replicas training(world);
    training.ddp(inputs(9)).sum().backward();
    const auto expect_equal_of = [&](const std::vector<int>& on_0, const std::vector<int>& on_1) {
      const Statistics found = statistics_of(*training.net, world.rank() == 0 ? on_0 : on_1, world);
      EXPECT_TRUE(torch::allclose(found.mean, expected.mean, 1e-5, 1e-6));
      EXPECT_TRUE(torch::allclose(found.variance, expected.variance, 1e-5, 1e-6));
      EXPECT_EQ(found.batches, 4);
    };
    expect_equal_of({1}, {2, 3, 4});
    expect_equal_of({}, {1, 2, 3, 4});
    world.barrier();
  });
}

TEST(UpdateBn, LeavesSyncBatchNormWhichKnowsAllRanksAlready) {
  run_in_process(2, [&](ProcessGroup& world) {
    torch::nn::Sequential net(torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4));
    convert_sync_batchnorm(*net, world);
    const auto pass = [&] {
      for (int batch = 0; batch < 2; ++batch) net->forward(torch::ones({5, 3}) * world.rank());
    };
    update_bn(*net, pass, world);
    const auto& norm = *net->ptr<SyncBatchNormImpl>(1);
    EXPECT_EQ(norm.num_batches_tracked.item<std::int64_t>(), 2);
    EXPECT_EQ(norm.options.momentum(), 0.1);
    world.barrier();
  });
}

TEST(UpdateBn, RefusesAScriptWithBatchNorm) {
  ScriptModule script(test::small_script("BatchNorm2d"));
  std::string text;
  EXPECT_EQ(fault_of(
                [&] {
                  update_bn(
                      script, [] {}, ProcessGroup::self());
                },
                &text),
            Fault::unsupported);
  EXPECT_NE(text.find("'layer'"), text.npos) << text;
}

}  // namespace
}  // namespace lockstep::parallel::averaged_model_test
