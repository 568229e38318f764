// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/on_meta.h"

#include <gtest/gtest.h>
#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/nn/layers.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/fully_sharded/fully_sharded_data_parallel.h"
#include "lockstep/parallel/pipeline/pipeline.h"
#include "lockstep/parallel/shard/zero_redundancy_optimizer.h"
#include "lockstep/parallel/tensor_parallel/parallelize_module.h"
#include "lockstep/tensor/generator_states.h"
#include "lockstep/tensor/named_tensors.h"
#include "tests/fault_of.h"
#include "tests/memory_limit.h"
#include "tests/ranks.h"
#include "tests/rigs/large_module.h"

namespace lockstep::parallel::on_meta_test {
namespace {

using test::fault_of;
using test::LargeModule;
using test::Rank;
using test::Ranks;
using torch::optim::AdamOptions;

// Its construction order differs from that of registration.
struct Net : torch::nn::Module {
  Net() {
    register_module("embedding", embedding);
    for (int i = 0; i < 3; ++i) blocks->push_back(torch::nn::Linear(26, 26));
    register_module("blocks", blocks);
    register_module("norm", norm);
    register_module("out", out);
    tied = register_parameter("tied", embedding->weight);
    scale = register_parameter("scale", torch::randn({26}) * 0.1 + 1);
    register_parameter("frozen", torch::randn({5}), /*requires_grad=*/false);
    mask = register_buffer("mask", torch::triu(torch::rand({26, 26})));
  }

  torch::Tensor forward(const torch::Tensor& tokens) {
    torch::Tensor x = embedding->forward(tokens).flatten(0, 1);
    for (const auto& block : *blocks)
      x = x + torch::gelu(block->as<torch::nn::Linear>()->forward(x.matmul(mask)));
    return out->forward(norm->forward(x * scale)).matmul(tied.t());
  }

  torch::nn::Linear out{26, 26};
  torch::nn::BatchNorm1d norm{26};
  torch::nn::Embedding embedding{31, 26};
  torch::nn::ModuleList blocks;
  torch::Tensor tied, scale, mask;
};

const auto make = [] { return std::make_shared<Net>(); };
const FullyShardedOptions by_block{.units = {"blocks.*"}};

torch::Tensor tokens(int seed) {
  return (torch::arange(24, torch::kLong) * (seed + 3)).remainder(31).view({4, 6});
}

void expect_equal(const torch::nn::Module& one, const torch::nn::Module& other) {
  const NamedTensors a = named_tensors(one), b = named_tensors(other);
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].first, b[i].first);
    EXPECT_TRUE(torch::equal(a[i].second, b[i].second)) << a[i].first;
  }
}

std::vector<torch::Tensor> trained(const torch::nn::Module& net) {
  std::vector<torch::Tensor> parameters;
  for (const auto& [name, parameter] : named_parameters(net))
    if (name != "tied" && parameter.requires_grad()) parameters.push_back(parameter);
  return parameters;
}

template <class Model, class Optimizer>
void train(Model& model, Optimizer& optimizer, int rank) {
  for (int step = 0; step < 5; ++step) {
    optimizer.zero_grad();
    model(tokens(10 * step + rank)).square().mean().backward();
    optimizer.step();
  }
}

// --- Values --------------------------------------------------------------------------------------

const Ranks constructed("on meta: constructed", [](const Rank& rank) {
  torch::set_num_threads(1);
  ProcessGroup world = init_process_group();
  torch::manual_seed(7);
  const auto plain = make();
  const at::Tensor drawn = default_generator_state();

  torch::manual_seed(rank.rank == 0 ? 7 : 100 + rank.rank);  // Rank 0's seed counts.
  const auto net = on_meta(make);
  FullyShardedDataParallel fsdp(net, world, by_block);
  FullyShardedOptimizer<Adam> adam(fsdp, trained(*net), AdamOptions(1e-2));
  EXPECT_FALSE(fsdp.is_initialized());
  fsdp.initialize(make);
  EXPECT_TRUE(fsdp.is_initialized());
  expect_equal(*net, *plain);
  EXPECT_EQ(torch::equal(default_generator_state(), drawn), rank.rank == 0);

  DistributedDataParallel ddp(plain, world);
  Adam plain_adam(trained(*plain), AdamOptions(1e-2));
  train(ddp, plain_adam, rank.rank);
  train(fsdp, adam, rank.rank);
  expect_equal(*net, *plain);
  destroy_process_group(world);
});

TEST(OnMeta, ValuesAndTrainingEqualThoseOfAnOrdinaryModuleBitForBit) {
  for (const int ranks : {1, 2, 4}) EXPECT_TRUE(all_succeeded(constructed.run(ranks))) << ranks;
}

const Ranks filled("on meta: filled", [](const Rank&) {
  ProcessGroup world = init_process_group();
  const auto fill = [](const std::string& name, torch::Tensor& tensor) {
    name == "norm.num_batches_tracked" ? tensor.zero_() : tensor.normal_(0, 0.02);
  };
  torch::manual_seed(3);
  const auto plain = make();
  {
    const torch::NoGradGuard no_grad;
    torch::manual_seed(5);
    for (auto [name, tensor] : named_tensors(*plain))
      if (name != "embedding.weight") fill(name, tensor);
  }
  const at::Tensor drawn = default_generator_state();
  const auto net = on_meta(make);
  FullyShardedDataParallel fsdp(net, world, by_block);
  torch::manual_seed(5);
  std::vector<std::string> names;
  fsdp.initialize([&](const std::string& name, torch::Tensor& tensor) {
    names.push_back(name);
    fill(name, tensor);
  });
  EXPECT_EQ(names.size(), world.rank() == 0 ? named_tensors(*net).size() - 1 : 0);
  expect_equal(*net, *plain);
  EXPECT_TRUE(torch::equal(default_generator_state(), drawn));
  fsdp(tokens(1)).sum().backward();
  destroy_process_group(world);
});

TEST(OnMeta, AFunctionGivesEachTensorItsValueOnceInOrder) {
  for (const int ranks : {1, 2, 4}) EXPECT_TRUE(all_succeeded(filled.run(ranks))) << ranks;
}

TEST(OnMeta, AFunctionMayAssignATensorOfTheSameShape) {
  run_in_process(2, [](ProcessGroup& world) {
    torch::nn::Linear net = on_meta([] { return torch::nn::Linear(3, 4); });
    FullyShardedDataParallel fsdp(net, world);
    fsdp.initialize([](const std::string& name, torch::Tensor& tensor) {
      if (name == "weight") tensor = torch::full({4, 3}, 2.0);
    });
    EXPECT_TRUE(torch::equal(net->weight.detach(), torch::full({4, 3}, 2.0)));
    EXPECT_TRUE(torch::equal(net->bias.detach(), torch::zeros({4})));
    const Fault fault = fault_of([&] {
      fsdp.initialize([](const std::string&, torch::Tensor& tensor) { tensor = torch::ones(2); });
    });
    EXPECT_EQ(fault, world.rank() == 0 ? Fault::misuse : Fault::aborted);
    world.barrier();
  });
}

TEST(OnMeta, SharedParametersOfDistributedDataParallelAreTheSame) {
  run_in_process(2, [](ProcessGroup& world) {
    if (world.rank() == 0) torch::manual_seed(9);
    world.barrier();
    torch::nn::Sequential net = on_meta(
        [] { return torch::nn::Sequential(torch::nn::Linear(3, 4), torch::nn::Linear(4, 2)); });
    DistributedDataParallel ddp(net, world, {.share_parameters = true});
    ddp.initialize([](const std::string&, torch::Tensor& tensor) { tensor.fill_(0.5); });
    EXPECT_EQ(ddp(torch::ones({1, 3}))[0][0].item<float>(), 0.5F + 4 * 0.5F * 2);
    world.barrier();
  });
}

// --- Memory --------------------------------------------------------------------------------------

const Ranks limited("on meta: limited", [](const Rank&) {
  torch::set_num_threads(1);
  ProcessGroup world = init_process_group();
  const test::MemoryLimit limit(std::size_t{48} << 20);
  const auto make_large = [] { return std::make_shared<LargeModule>(); };
  const auto net = on_meta(make_large);
  FullyShardedDataParallel fsdp(net, world);
  torch::manual_seed(2);
  fsdp.initialize(make_large);
  torch::manual_seed(2);
  for (const auto& layer : *net->layers) {
    const torch::nn::Linear expected(1024, 1024);
    EXPECT_TRUE(torch::equal(layer->as<torch::nn::Linear>()->weight, expected->weight));
  }
  EXPECT_THROW(make_large(), std::exception);
  destroy_process_group(world);
});

TEST(OnMeta, NoRankEverHasAWholeCopy) {
  for (const int ranks : {1, 2, 4}) EXPECT_TRUE(all_succeeded(limited.run(ranks))) << ranks;
}

// --- Errors --------------------------------------------------------------------------------------

void expect_misuse(const std::string& part, const std::function<void()>& call) {
  std::string text;
  EXPECT_EQ(fault_of(call, &text), Fault::misuse);
  EXPECT_NE(text.find(part), text.npos) << text;
}

TEST(OnMeta, WithoutValuesThereIsNoForward) {
  run_in_process(2, [](ProcessGroup& world) {
    FullyShardedDataParallel fsdp(on_meta(make), world, by_block);
    expect_misuse("tied has no value yet", [&] { fsdp(tokens(1)); });
    fsdp.edit_parameters([] {});
    expect_misuse("call initialize()", [&] { fsdp(tokens(1)); });
    world.barrier();
  });
}

const Ranks failing("on meta: failing", [](const Rank& rank) {
  ProcessGroup world = init_process_group();
  const auto net = on_meta(make);
  FullyShardedDataParallel fsdp(net, world, by_block);
  const auto fails = [](const std::string& name, torch::Tensor&) {
    if (name == "scale") throw std::runtime_error("no scale");
  };
  if (rank.rank == 0) {
    EXPECT_THROW(fsdp.initialize(fails), std::runtime_error);
  } else {
    std::string text;
    EXPECT_EQ(fault_of([&] { fsdp.initialize(fails); }, &text), Fault::aborted);
    EXPECT_NE(text.find("initialize() failed on rank 0: no scale"), text.npos) << text;
  }
  EXPECT_FALSE(fsdp.is_initialized());
  std::string text;
  const Fault fault =
      fault_of([&] { fsdp.initialize([] { return torch::nn::Linear(2, 3); }); }, &text);
  EXPECT_EQ(fault, rank.rank == 0 ? Fault::misuse : Fault::aborted);
  EXPECT_NE(text.find("the function makes another module"), text.npos) << text;
  EXPECT_FALSE(fsdp.is_initialized());
  fsdp.initialize(make);
  fsdp(tokens(1)).sum().backward();
  destroy_process_group(world);
});

TEST(OnMeta, AFunctionThatThrowsIsAnErrorOnAllRanksAndMayBeTriedAgain) {
  EXPECT_TRUE(all_succeeded(failing.run(3)));
}

const Ranks other_calls("on meta: other calls", [](const Rank& rank) {
  const ProcessGroup world = init_process_group();
  FullyShardedDataParallel fsdp(on_meta(make), world);
  EXPECT_EQ(fault_of([&] { rank.rank == 0 ? fsdp.initialize(make) : fsdp.edit_parameters([] {}); }),
            Fault::mismatch);
});

TEST(OnMeta, RanksThatDisagreeAreAMismatch) {
  run_in_process(2, [](ProcessGroup& world) {
    std::string text;
    EXPECT_EQ(
        fault_of(
            [&] { FullyShardedDataParallel(world.rank() == 1 ? make() : on_meta(make), world); },
            &text),
        Fault::mismatch);
    EXPECT_NE(text.find("on meta"), text.npos) << text;
  });
  EXPECT_TRUE(all_succeeded(other_calls.run(2)));
}

TEST(OnMeta, OthersRefuseSuchAModuleByName) {
  run_in_process(2, [](ProcessGroup& world) {
    const auto net = on_meta(make);
    expect_misuse("DistributedDataParallel: tied is on the meta device",
                  [&] { DistributedDataParallel(net, world); });
    expect_misuse("parameter 0 of a sharded optimizer is on the meta device",
                  [&] { ZeroRedundancyOptimizer<Adam>(trained(*net), world, AdamOptions()); });
    expect_misuse("Adam: a parameter is on the meta device",
                  [&] { Adam(trained(*net), AdamOptions()).step(); });
    auto linear = on_meta([] { return nn::Linear(4, 4); });
    expect_misuse("parallelize_module: weight is on the meta device", [&] {
      parallelize_module(*linear, world, {{"", ColwiseParallel()}});
    });
    LayerList layers;
    for (const char* name : {"one", "two"})
      layers.add(name, [] { return on_meta([] { return torch::nn::Linear(2, 2); }); });
    expect_misuse("Pipeline: layer one: weight is on the meta device",
                  [&] { Pipeline(layers, world, {}); });
    DistributedDataParallel ddp(torch::nn::Linear(2, 2), world);
    expect_misuse("initialize the module before DistributedDataParallel is made",
                  [&] { ddp.initialize([](const std::string&, torch::Tensor&) {}); });
    world.barrier();
  });
}

}  // namespace
}  // namespace lockstep::parallel::on_meta_test
