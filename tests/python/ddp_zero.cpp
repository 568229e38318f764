// Optimizers with sharded states, with and without sharded gradients and weights.

// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "tests/python/ddp_scenarios.h"
#include "tests/python/ddp_training.h"

namespace {

using lockstep::DistributedDataParallel;
using lockstep::ZeroRedundancyOptimizer;

template <class Net>
void record(Rig& rig, const Net& net, const lockstep::WholeParameterOptimizer& optimizer) {
  std::vector<std::int64_t> flat;
  for (const auto& indices : optimizer.partition()) {
    flat.insert(flat.end(), indices.begin(), indices.end());
    flat.push_back(-1);
  }
  rig.record("partition", torch::tensor(flat, torch::kLong));
  for (const auto& [name, tensor] : lockstep::named_parameters(net)) rig.record(name, tensor);
  rig.record_losses();
}

ZeroRedundancyOptimizer<lockstep::Adam> adam(const Rig& rig, const Mlp& net) {
  return {net.parameters(), rig.world(), torch::optim::AdamOptions(0.01).weight_decay(0.1)};
}

void zero_adam(Rig& rig) {
  const auto net = mlp(rig);
  DistributedDataParallel ddp(net, rig.world(), rig.options());
  auto optimizer = adam(rig, *net);
  train(rig, ddp, optimizer);
  record(rig, *net, optimizer);
}

void zero_sharded_gradients(Rig& rig) {
  const auto net = mlp(rig);
  DistributedDataParallel ddp(net, rig.world(), rig.options());
  auto optimizer = adam(rig, *net);
  ddp.shard_gradients(optimizer);
  train(rig, ddp, optimizer);
  record(rig, *net, optimizer);
}

void zero_param_groups(Rig& rig) {
  const auto net = mlp(rig);
  DistributedDataParallel ddp(net, rig.world(), rig.options());
  const auto options = torch::optim::SGDOptions(0.1).momentum(0.9);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(net->linear1->parameters());
  auto rest = net->linear2->parameters();
  for (const auto& parameter : net->linear3->parameters()) rest.push_back(parameter);
  auto slower = options;
  slower.lr(0.01);
  groups.emplace_back(rest, std::make_unique<torch::optim::SGDOptions>(slower));
  ZeroRedundancyOptimizer<torch::optim::SGD> optimizer(groups, rig.world(), options);
  train(rig, ddp, optimizer);
  record(rig, *net, optimizer);
}

// Whether all hosts have equally many ranks, as shared parameters require.
bool are_even(const lockstep::ProcessGroup& world) {
  const auto sizes = lockstep::all_gather_value(world.local_size(), world);
  return std::ranges::all_of(sizes, [&](int size) { return size == sizes.front(); });
}

// `convert` prepares the input for forward(). On uneven hosts, each rank has its own copy.
template <class Convert>
void train_fully_sharded(Rig& rig, lockstep::FullyShardedOptions options, std::size_t passes,
                         Convert convert) {
  if (!are_even(rig.world())) options.shard = rig.world().split(rig.world().rank());
  const auto net = mlp(rig);
  lockstep::FullyShardedDataParallel fsdp(net, rig.world(), options);
  lockstep::FullyShardedOptimizer<lockstep::Adam> adam(
      fsdp, net->parameters(), torch::optim::AdamOptions(0.01).weight_decay(0.1));
  for (std::size_t step = 0; step < steps; ++step) {
    adam.zero_grad();
    for (std::size_t number = 0; number < passes; ++number) {
      const auto no_sync = fsdp.no_sync(number + 1 < passes);
      rig.loss(fsdp(convert(rig.x((step + number) % steps))), step).backward();
    }
    adam.step();
  }
  fsdp.with_gathered([&] {
    for (const auto& [name, tensor] : lockstep::named_parameters(*net))
      rig.record(name, tensor.to(torch::kFloat));
  });
  rig.record_losses();
}

const lockstep::FullyShardedOptions by_layer{.units = {"linear?"}};

torch::Tensor as_it_is(const torch::Tensor& x) { return x; }

void fully_sharded_adam(Rig& rig) { train_fully_sharded(rig, by_layer, 1, as_it_is); }
void fully_sharded_accumulation(Rig& rig) { train_fully_sharded(rig, by_layer, 2, as_it_is); }

void fully_sharded_bfloat16(Rig& rig) {
  lockstep::FullyShardedOptions options = by_layer;
  options.param_type = torch::kBFloat16;
  train_fully_sharded(rig, options, 1,
                      [](const torch::Tensor& x) { return x.to(torch::kBFloat16); });
}

}  // namespace

Scenarios zero_scenarios() {
  return {{"zero_adam", zero_adam},
          {"zero_sharded_gradients", zero_sharded_gradients},
          {"zero_param_groups", zero_param_groups},
          {"fully_sharded_adam", fully_sharded_adam},
          {"fully_sharded_accumulation", fully_sharded_accumulation},
          {"fully_sharded_bfloat16", fully_sharded_bfloat16}};
}
