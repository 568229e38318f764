// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/mixed_precision.h"

#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/base/log.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/optim/clip_grad_norm.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/deterministic/deterministic_data_parallel.h"
#include "lockstep/parallel/fully_sharded/fully_sharded_data_parallel.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "lockstep/parallel/shard/zero_redundancy_optimizer.h"
#include "lockstep/parallel/shared_parameters/shared_optimizer.h"
#include "lockstep/tensor/named_tensors.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"
#include "tests/rigs/across_hosts.h"
#include "tests/rigs/sharded_net.h"

namespace lockstep::parallel::mixed_precision_test {
namespace {

using test::fault_of;
using test::HostLayout;
using test::loss_of;
using test::Net;
using test::parameters_of;
using test::Rank;
using test::Ranks;
using test::tokens;
using torch::optim::AdamOptions;

constexpr float infinity = std::numeric_limits<float>::infinity();

// --- GradScaler ----------------------------------------------------------------------------------

// One element of one rank's gradient is infinite, each time on another rank.
bool is_bad(int step) { return step % 4 == 2; }

std::shared_ptr<Net> net_with(const bool& bad) {
  const auto net = std::make_shared<Net>();
  net->scale.register_hook([&bad](const torch::Tensor& gradient) {
    if (!bad) return gradient;
    torch::Tensor changed = gradient.clone();
    changed[0] = infinity;
    return changed;
  });
  return net;
}

const DistributedDataParallelOptions replicas{.find_unused_parameters = true,
                                              .non_finite = NonFinite::ignore};

// Optimizer::zero_grad() is not virtual: gradients that step() consumes must be dropped after a
// skipped step, too.
template <class Ddp, class Scaled, class Step>
void train(Ddp& ddp, torch::optim::Optimizer& optimizer, bool& bad, const ProcessGroup& world,
           Scaled scaled, Step step) {
  for (int i = 0; i < 12; ++i) {
    optimizer.zero_grad();
    bad = is_bad(i) && world.rank() == i / 4 % world.size();
    for (const bool last : {false, true}) {
      if (!last && i % 3 != 0) continue;
      const auto alone = ddp.no_sync(!last);
      scaled(loss_of(ddp(tokens(100 * i + 10 * last + world.rank())))).backward();
    }
    step(i);
  }
}

// Replicas that skip these steps. With a scale of a power of two, the bits are equal.
std::vector<torch::Tensor> expected_weights(const ProcessGroup& world) {
  bool bad = false;
  const auto net = net_with(bad);
  DistributedDataParallel ddp(net, world, replicas);
  Adam adam(parameters_of(*net), AdamOptions(1e-3));
  train(
      ddp, adam, bad, world, [](const torch::Tensor& loss) { return loss; },
      [&](int i) {
        if (!is_bad(i)) adam.step();
      });
  return parameters_of(*net);
}

template <class Ddp, class Optimizer>
void expect_the_same_steps(Ddp& ddp, Optimizer& optimizer, bool& bad, const ProcessGroup& world,
                           const std::vector<torch::Tensor>& expected) {
  GradScaler scaler(ProcessGroup::self(), {.init_scale = 64, .growth_interval = 3});
  train(
      ddp, optimizer, bad, world, [&](const torch::Tensor& loss) { return scaler.scale(loss); },
      [&](int i) {
        if (i % 2 == 1) scaler.unscale_(optimizer);
        EXPECT_EQ(scaler.step(optimizer), !is_bad(i)) << "step " << i;
        scaler.update();
      });
  EXPECT_EQ(scaler.get_scale(), 32);
  const auto weights = parameters_of(*ddp.module());
  for (std::size_t i = 0; i < weights.size(); ++i)
    EXPECT_TRUE(torch::equal(weights[i], expected[i])) << i;
}

const Ranks scaled("mixed precision: scaled", [](const Rank&) {
  torch::set_num_threads(1);
  ProcessGroup world = init_process_group();
  const auto expected = expected_weights(world);
  bool bad = false;
  const AdamOptions adam(1e-3);
  {
    SCOPED_TRACE("replicas");
    DistributedDataParallel ddp(net_with(bad), world, replicas);
    Adam optimizer(parameters_of(*ddp.module()), adam);
    expect_the_same_steps(ddp, optimizer, bad, world, expected);
  }
  for (const bool sharded : {false, true}) {
    SCOPED_TRACE(sharded ? "ZeRO-2" : "ZeRO-1");
    DistributedDataParallel ddp(net_with(bad), world, replicas);
    ZeroRedundancyOptimizer<Adam> optimizer(parameters_of(*ddp.module()), world, adam);
    if (sharded) ddp.shard_gradients(optimizer);
    expect_the_same_steps(ddp, optimizer, bad, world, expected);
  }
  {
    SCOPED_TRACE("shared");
    auto options = replicas;
    options.share_parameters = true;
    DistributedDataParallel ddp(net_with(bad), world, options);
    SharedOptimizer<Adam> optimizer(ddp, parameters_of(*ddp.module()), adam);
    expect_the_same_steps(ddp, optimizer, bad, world, expected);
  }
  {
    SCOPED_TRACE("fully sharded");
    FullyShardedDataParallel fsdp(
        net_with(bad), world,
        {.units = {"blocks.*"}, .find_unused_parameters = true, .non_finite = NonFinite::ignore});
    FullyShardedOptimizer<Adam> optimizer(fsdp, parameters_of(*fsdp.module()), adam);
    expect_the_same_steps(fsdp, optimizer, bad, world, expected);
  }
  destroy_process_group(world);
});

TEST(GradScalerOfRanks, AllRanksOmitAStepOfWhichOneHasAnInfinity) {
  for (const int ranks : {1, 2, 4}) EXPECT_TRUE(all_succeeded(scaled.run(ranks))) << ranks;
}

const Ranks clipped("mixed precision: clipped", [](const Rank&) {
  ProcessGroup world = init_process_group();
  bool bad = false;
  const auto norm_of = [&](auto& ddp, auto& optimizer, double scale, const auto& clip) {
    GradScaler scaler(ProcessGroup::self(), {.init_scale = scale});
    optimizer.zero_grad();
    scaler.scale(loss_of(ddp(tokens(world.rank())))).backward();
    scaler.unscale_(optimizer);
    const double norm = clip();
    EXPECT_TRUE(scaler.step(optimizer));
    return norm;
  };
  const auto both = [&](auto& ddp, auto& optimizer, const auto& clip) {
    const double plain = norm_of(ddp, optimizer, 1, clip);
    EXPECT_GT(plain, 0);
    EXPECT_EQ(norm_of(ddp, optimizer, 1024, clip), plain);
  };
  const torch::optim::SGDOptions still(0);
  DistributedDataParallel ddp(net_with(bad), world, replicas);
  ZeroRedundancyOptimizer<SGD> zero(parameters_of(*ddp.module()), world, still);
  both(ddp, zero,
       [&] { return clip_grad_norm_(parameters_of(*ddp.module()), 1e9).item<double>(); });
  both(ddp, zero, [&] { return zero.clip_grad_norm_(1e9); });
  auto options = replicas;
  options.share_parameters = true;
  DistributedDataParallel sharing(net_with(bad), world, options);
  SharedOptimizer<SGD> shared(sharing, parameters_of(*sharing.module()), still);
  both(sharing, shared, [&] { return shared.clip_grad_norm_(1e9); });
  destroy_process_group(world);
});

TEST(GradScalerOfRanks, ClippingComesAfterUnscaling) { EXPECT_TRUE(all_succeeded(clipped.run(2))); }

// --- What the infinities of all ranks cost -------------------------------------------------------

std::int64_t collectives_of(const ProcessGroup& group) {
  const std::string record = group.flight_record();
  const std::string key = "\"sequence\":";
  const std::size_t last = record.rfind(key, record.find("\"messages\""));
  return last == record.npos ? 0 : std::atoll(record.c_str() + last + key.size());
}

// Additional collectives of a step with a scaler.
template <class Ddp, class Optimizer, class Clip>
std::int64_t cost_of_scaler(Ddp& ddp, Optimizer& optimizer, const ProcessGroup& world,
                            const Clip& clip) {
  GradScaler scaler(ProcessGroup::self(), {.init_scale = 64});
  const auto collectives = [&](const auto& step) {
    optimizer.zero_grad();
    scaler.scale(loss_of(ddp(tokens(world.rank())))).backward();
    const std::int64_t before = collectives_of(world);
    step();
    return collectives_of(world) - before;
  };
  const std::int64_t without = collectives([&] {
    clip();
    optimizer.step();
  });
  const std::int64_t with = collectives([&] {
    scaler.unscale_(optimizer);
    clip();
    EXPECT_TRUE(scaler.step(optimizer));
  });
  return with - without;
}

const Ranks counted("mixed precision: collectives", [](const Rank&) {
  ProcessGroup world = init_process_group();
  bool bad = false;
  const torch::optim::SGDOptions still(0);
  const auto unclipped = [] {};
  {
    DistributedDataParallel ddp(net_with(bad), world, replicas);
    SGD sgd(parameters_of(*ddp.module()), still);
    EXPECT_EQ(cost_of_scaler(ddp, sgd, world, unclipped), 0);
    ZeroRedundancyOptimizer<SGD> zero(parameters_of(*ddp.module()), world, still);
    EXPECT_EQ(cost_of_scaler(ddp, zero, world, unclipped), 0);
  }
  {
    DistributedDataParallel ddp(net_with(bad), world, replicas);
    ZeroRedundancyOptimizer<SGD> zero(parameters_of(*ddp.module()), world, still);
    ddp.shard_gradients(zero);
    EXPECT_EQ(cost_of_scaler(ddp, zero, world, unclipped), 1);
  }
  {
    auto options = replicas;
    options.share_parameters = true;
    DistributedDataParallel ddp(net_with(bad), world, options);
    SharedOptimizer<SGD> shared(ddp, parameters_of(*ddp.module()), still);
    EXPECT_EQ(cost_of_scaler(ddp, shared, world, unclipped), 1);
    EXPECT_EQ(cost_of_scaler(ddp, shared, world, [&] { shared.clip_grad_norm_(1); }), 0);
  }
  {
    FullyShardedDataParallel fsdp(
        net_with(bad), world,
        {.units = {"blocks.*"}, .find_unused_parameters = true, .non_finite = NonFinite::ignore});
    FullyShardedOptimizer<SGD> sharded(fsdp, parameters_of(*fsdp.module()), still);
    EXPECT_EQ(cost_of_scaler(fsdp, sharded, world, unclipped), 0);
    EXPECT_EQ(cost_of_scaler(fsdp, sharded, world, [&] { sharded.clip_grad_norm_(1); }), 0);
  }
  destroy_process_group(world);
});

TEST(GradScalerOfRanks, StepsThatWaitForAllRanksAnywayMakeNoFurtherCollective) {
  EXPECT_TRUE(all_succeeded(counted.run(2)));
}

const Ranks overflowing("mixed precision: the sum overflows", [](const Rank&) {
  ProcessGroup world = init_process_group();
  const auto huge = [](auto& ddp, GradScaler& scaler) {
    const torch::Tensor weight = ddp.module()->scale;
    (scaler.scale(loss_of(ddp(tokens(3)))) + weight[0] * std::numeric_limits<double>::max())
        .backward();
  };
  const auto expect_omitted = [&](auto& ddp, auto& optimizer) {
    GradScaler scaler(ProcessGroup::self(), {.init_scale = 64});
    optimizer.zero_grad();
    huge(ddp, scaler);
    EXPECT_FALSE(scaler.step(optimizer));
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), 32);
  };
  bool bad = false;
  const torch::optim::SGDOptions still(0);
  DistributedDataParallel owning(net_with(bad), world, replicas);
  ZeroRedundancyOptimizer<SGD> zero(parameters_of(*owning.module()), world, still);
  owning.shard_gradients(zero);
  expect_omitted(owning, zero);
  auto options = replicas;
  options.share_parameters = true;
  DistributedDataParallel sharing(net_with(bad), world, options);
  SharedOptimizer<SGD> shared(sharing, parameters_of(*sharing.module()), still);
  expect_omitted(sharing, shared);
  FullyShardedDataParallel fsdp(
      net_with(bad), world,
      {.units = {"blocks.*"}, .find_unused_parameters = true, .non_finite = NonFinite::ignore});
  FullyShardedOptimizer<SGD> optimizer(fsdp, parameters_of(*fsdp.module()), still);
  expect_omitted(fsdp, optimizer);
  destroy_process_group(world);
});

TEST(GradScalerOfRanks, ASumThatOverflowsIsFoundOnAllRanks) {
  EXPECT_TRUE(all_succeeded(overflowing.run(2)));
}

// SharedOptimizer slices the means in step().
const Ranks in_microbatches("mixed precision: in microbatches", [](const Rank&) {
  ProcessGroup world = init_process_group();
  bool bad = false;
  DeterministicDataParallel ddp(
      net_with(bad), world,
      {.microbatches = 4, .share_parameters = true, .non_finite = NonFinite::ignore});
  SharedOptimizer<SGD> sgd(ddp, std::vector{ddp.module()->scale}, torch::optim::SGDOptions(1));
  const torch::Tensor before = ddp.module()->scale.detach().clone();
  for (const double scale : {1024.0, 1.0}) {
    GradScaler scaler(ProcessGroup::self(), {.init_scale = scale});
    for (const bool overflows : {true, false}) {
      sgd.zero_grad();
      bad = overflows && world.rank() == 1;
      ddp.train_microbatches(0, [&](const GlobalMicrobatch&) {
        return scaler.scale(loss_of(ddp(tokens(3), /*uses_all=*/true)));
      });
      scaler.unscale_(sgd);
      const torch::Tensor gradient = ddp.module()->scale.grad().clone();
      EXPECT_EQ(scaler.step(sgd), !overflows);
      scaler.update(scale);
      EXPECT_EQ(gradient.isfinite().all().item<bool>(), !overflows);
      if (overflows || scale != 1024) continue;
      EXPECT_TRUE(torch::equal(ddp.module()->scale, before - gradient));
      EXPECT_LT(gradient.abs().max().item<double>(), 100) << "the scale is still there";
    }
  }
  destroy_process_group(world);
});

TEST(GradScalerOfRanks, WorksWithMicrobatchesAndSharedWeights) {
  EXPECT_TRUE(all_succeeded(in_microbatches.run(2)));
}

TEST(GradScalerOfRanks, ErrorsNameTheOptionThatItNeeds) {
  set_log_sink([](LogLevel, std::string_view) {});
  run_in_process(2, [](ProcessGroup& world) {
    for (const NonFinite choice : {NonFinite::fail, NonFinite::skip}) {
      bool bad = world.rank() == 1;
      DistributedDataParallel ddp(net_with(bad), world,
                                  {.find_unused_parameters = true, .non_finite = choice});
      Adam adam(parameters_of(*ddp.module()));
      GradScaler scaler;
      std::string text;
      const Fault fault = fault_of(
          [&] {
            scaler.scale(loss_of(ddp(tokens(1)))).backward();
            scaler.step(adam);
          },
          &text);
      EXPECT_EQ(fault, choice == NonFinite::fail ? Fault::corrupt : Fault::misuse);
      EXPECT_NE(text.find("NonFinite::ignore"), text.npos) << text;
    }
  });
  set_log_sink({});
}

// --- Autocast and channels_last ------------------------------------------------------------------

struct Cnn : torch::nn::Module {
  explicit Cnn(bool channels_last = true) {
    register_module("first", first);
    register_module("norm", norm);
    register_module("second", second);
    register_module("out", out);
    torch::manual_seed(3);
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& parameter : parameters()) {
      parameter.copy_(torch::randn_like(parameter) * 0.05);
      if (channels_last && parameter.dim() == 4)
        parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
    }
  }

  torch::Tensor forward(const torch::Tensor& images) {
    const torch::Tensor x = torch::relu(norm->forward(first->forward(images)));
    return out->forward(torch::max_pool2d(torch::relu(second->forward(x)), 4).flatten(1));
  }

  torch::nn::Conv2d first{torch::nn::Conv2dOptions(3, 80, 3).padding(1)};
  torch::nn::BatchNorm2d norm{80};
  torch::nn::Conv2d second{torch::nn::Conv2dOptions(80, 100, 3).padding(1)};  // 288 KB.
  torch::nn::Linear out{400, 10};
};

torch::Tensor images(std::int64_t seed, std::int64_t count = 8) {
  return torch::cos(torch::arange(count * 3 * 64) * (0.01 * static_cast<double>(seed) + 0.003))
      .view({count, 3, 8, 8})
      .contiguous(at::MemoryFormat::ChannelsLast);
}

torch::Tensor classes(std::int64_t count = 8) { return torch::arange(count).remainder(10); }

template <class Model>
torch::Tensor loss_of_images(Model& model, const torch::Tensor& batch, bool bf16) {
  const Autocast amp(at::kCPU, at::kBFloat16, bf16);
  if constexpr (requires { model(batch); })
    return torch::nn::functional::cross_entropy(model(batch), classes(batch.size(0)));
  else
    return torch::nn::functional::cross_entropy(model.forward(batch), classes(batch.size(0)));
}

void expect_equal(const torch::nn::Module& a, const torch::nn::Module& b) {
  const auto ours = a.named_parameters(), theirs = b.named_parameters();
  for (std::size_t i = 0; i < ours.size(); ++i)
    EXPECT_TRUE(torch::equal(ours[i].value(), theirs[i].value())) << ours[i].key();
}

// Each rank has the batch of the one process.
void train_as_one_process(const ProcessGroup& world, bool channels_last, bool bf16, bool overlap) {
  Cnn alone(channels_last);
  const auto net = std::make_shared<Cnn>(channels_last);
  DistributedDataParallel ddp(net, world, {.overlap = overlap});
  Adam plain(alone.parameters(), AdamOptions(1e-3)), adam(net->parameters(), AdamOptions(1e-3));
  for (int step = 0; step < 4; ++step) {
    plain.zero_grad();
    adam.zero_grad();
    loss_of_images(alone, images(step), bf16).backward();
    loss_of_images(ddp, images(step), bf16).backward();
    for (const auto& item : net->named_parameters()) {
      const torch::Tensor& weight = item.value();
      EXPECT_EQ(weight.grad().strides(), weight.strides()) << item.key();
      EXPECT_EQ(weight.grad().scalar_type(), at::kFloat) << item.key();
    }
    plain.step();
    adam.step();
  }
  EXPECT_EQ(net->second->weight.is_contiguous(at::MemoryFormat::ChannelsLast), channels_last);
  expect_equal(*net, alone);
}

const Ranks same_batches("mixed precision: same batches", [](const Rank&) {
  torch::set_num_threads(1);
  ProcessGroup world = init_process_group();
  for (const bool channels_last : {false, true})
    for (const bool bf16 : {false, true})
      for (const bool overlap : {false, true})
        train_as_one_process(world, channels_last, bf16, overlap);
  destroy_process_group(world);
});

TEST(AutocastOfRanks, ReplicasKeepLayoutsAndHaveTheBitsOfOneProcess) {
  for (const int ranks : {1, 2, 4}) EXPECT_TRUE(all_succeeded(same_batches.run(ranks))) << ranks;
}

// Without BatchNorm, whose statistics would differ.
const Ranks parts("mixed precision: parts of a batch", [](const Rank&) {
  torch::set_num_threads(1);
  ProcessGroup world = init_process_group();
  for (const bool bf16 : {false, true}) {
    Cnn alone;
    const auto net = std::make_shared<Cnn>();
    alone.eval();
    net->eval();
    DistributedDataParallel ddp(net, world);
    SGD plain(alone.parameters(), 0.1), sgd(net->parameters(), 0.1);
    for (int step = 0; step < 10; ++step) {
      plain.zero_grad();
      sgd.zero_grad();
      torch::Tensor all;
      for (int rank = 0; rank < world.size(); ++rank) {
        const torch::Tensor part = loss_of_images(alone, images(10 * step + rank), bf16);
        all = all.defined() ? all + part : part;
      }
      (all / world.size()).backward();
      loss_of_images(ddp, images(10 * step + world.rank()), bf16).backward();
      plain.step();
      sgd.step();
    }
    for (const auto& item : net->named_parameters()) {
      const torch::Tensor expected = alone.named_parameters()[item.key()].detach();
      const auto distance = (item.value().detach() - expected).norm().item<double>();
      EXPECT_LE(distance, (bf16 ? 2e-2 : 1e-4) * expected.norm().item<double>()) << item.key();
    }
  }
  destroy_process_group(world);
});

TEST(AutocastOfRanks, TrainsOnPartsOfABatchAsOneProcessOnAllOfIt) {
  for (const int ranks : {2, 3}) EXPECT_TRUE(all_succeeded(parts.run(ranks))) << ranks;
}

const Ranks microbatches("mixed precision: microbatches in bfloat16", [](const Rank& rank) {
  ProcessGroup world = init_process_group();
  const auto net = std::make_shared<Cnn>();
  net->eval();
  DeterministicDataParallel ddp(net, world, {.microbatches = 4});
  Adam adam(net->parameters(), AdamOptions(1e-3));
  for (int step = 0; step < 3; ++step) {
    adam.zero_grad();
    const torch::Tensor mine =
        images(step, 16).slice(0, world.rank(), torch::nullopt, world.size());
    ddp.train_microbatches(step, [&](const GlobalMicrobatch& microbatch) {
      const Autocast amp(at::kCPU, at::kBFloat16);
      const torch::Tensor logits = ddp(microbatch.of(mine));
      EXPECT_EQ(logits.scalar_type(), at::kBFloat16);
      return torch::nn::functional::cross_entropy(logits, classes(4));
    });
    adam.step();
  }
  const std::string digest = sha256(*net);
  if (world.rank() == 0) std::cout << "sha256 " << digest << std::endl;
  static_cast<void>(rank);
  destroy_process_group(world);
});

TEST(AutocastOfRanks, MicrobatchesHaveTheSameBitsOnEveryNumberOfRanks) {
  std::vector<std::string> digests;
  for (const int ranks : {1, 2, 4}) {
    const auto exits = microbatches.run(ranks);
    ASSERT_TRUE(all_succeeded(exits));
    const std::string& output = exits.front().output;
    ASSERT_NE(output.find("sha256 "), output.npos) << output;
    digests.push_back(output.substr(output.find("sha256 "), 71));
  }
  EXPECT_EQ(digests[1], digests[0]);
  EXPECT_EQ(digests[2], digests[0]);
}

void train_as_replicas(const ProcessGroup& world) {
  DistributedDataParallel plain(std::make_shared<Cnn>(), world);
  FullyShardedDataParallel sharded(std::make_shared<Cnn>(), world, {.units = {"first", "second"}});
  Adam plain_adam(plain.module()->parameters(), AdamOptions(1e-3));
  FullyShardedOptimizer<Adam> adam(sharded, sharded.module()->parameters(), AdamOptions(1e-3));
  for (int step = 0; step < 4; ++step) {
    plain_adam.zero_grad();
    adam.zero_grad();
    const torch::Tensor batch = images(10 * step + world.rank());
    const torch::Tensor a = loss_of_images(plain, batch, true);
    const torch::Tensor b = loss_of_images(sharded, batch, true);
    EXPECT_TRUE(torch::equal(a, b)) << "step " << step;
    a.backward();
    b.backward();
    plain_adam.step();
    adam.step();
  }
  sharded.with_gathered([&] { expect_equal(*sharded.module(), *plain.module()); });
}

const Ranks sharded("mixed precision: fully sharded in bfloat16", [](const Rank& rank) {
  torch::set_num_threads(1);
  ProcessGroup world =
      std::getenv("LOCKSTEP_TEST_HOSTS") ? test::join_across_hosts(rank) : init_process_group();
  train_as_replicas(world);
  destroy_process_group(world);
});

TEST(AutocastOfRanks, FullyShardedWeightsAreThoseOfReplicas) {
  for (const int ranks : {1, 2, 4}) EXPECT_TRUE(all_succeeded(sharded.run(ranks))) << ranks;
}

TEST(AutocastOfRanks, FullyShardedWeightsAreThoseOfReplicasOnTwoHosts) {
  LOCKSTEP_NEEDS_ENGINE("gloo");
  HostLayout{"aabb", "shm+gloo"}.set();
  EXPECT_TRUE(all_succeeded(sharded.run(4, std::chrono::minutes(3))));
  HostLayout::unset();
}

}  // namespace
}  // namespace lockstep::parallel::mixed_precision_test
