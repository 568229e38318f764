// Fully sharded modules that compute on a CUDA device, with weights in host memory, train as
// replicas on the CPU do.

// SPDX-License-Identifier: Apache-2.0
#include <cstddef>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/fully_sharded/fully_sharded_data_parallel.h"
#include "lockstep/tensor/on_meta.h"
#include "tests/cuda/trained.h"
#include "tests/fault_of.h"

namespace lockstep::offload_test {
namespace {

using namespace test;

class Offload : public OnStandIn {};

constexpr int steps = 5;
const std::vector<std::string> units{"a", "b", "extra"};

// Each step has two passes. The first one keeps its gradients on the rank.
template <class Model, class Optimizer>
void train(Model& model, Optimizer& optimizer, at::Device device, int rank) {
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    for (const int part : {0, 1}) {
      const auto alone = model.no_sync(part == 0);
      model(inputs(rank, 2 * step + part, device), /*with_extra=*/step % 2 == 0)
          .pow(2)
          .mean()
          .mul(0.5)
          .backward();
    }
    optimizer.step();
  }
}

// Final parameters and buffers of each rank, in CPU memory.
using Results = std::vector<std::vector<torch::Tensor>>;

Results replicas_on_the_cpu(int ranks) {
  return trained(Place::cpu, ranks, [](ProcessGroup& group, const std::shared_ptr<Net>& net) {
    Ddp ddp(net, group, {.find_unused_parameters = true});
    Adam adam(net->parameters(), torch::optim::AdamOptions(1e-2));
    train(ddp, adam, at::kCPU, group.rank());
    net->zero_grad();
  });
}

Results offloaded(int ranks, const FullyShardedOptions& given) {
  Results all(static_cast<std::size_t>(ranks));
  StandInDevices devices;
  note_calls(devices);
  run_on(ranks, devices, [&](ProcessGroup& group) {
    FullyShardedOptions options = given;
    options.offload = local_device(group);
    const auto net = std::make_shared<Net>();
    FullyShardedDataParallel fsdp(net, group, options);
    FullyShardedOptimizer<Adam> adam(fsdp, net->parameters(), torch::optim::AdamOptions(1e-2));
    for (const torch::Tensor& parameter : net->parameters())
      EXPECT_EQ(parameter.device(), *options.offload);
    for (const torch::Tensor& fragment : adam.local().param_groups().front().params())
      EXPECT_TRUE(fragment.is_cpu());
    train(fsdp, adam, *options.offload, group.rank());
    auto& mine = all[static_cast<std::size_t>(group.rank())];
    fsdp.with_gathered([&] {
      for (const auto& parameter : net->parameters()) mine.push_back(parameter.detach().cpu());
    });
    for (const auto& buffer : net->buffers()) mine.push_back(buffer.cpu());
    destroy_process_group(group);
  });
  return all;
}

TEST_F(Offload, TrainsAsReplicasOnTheCpu) {
  for (const int ranks : {1, 2}) {
    const Results expected = replicas_on_the_cpu(ranks);
    for (const bool overlap : {false, true})
      for (const std::size_t resident : {1U, 2U, 4U}) {
        const Results actual = offloaded(ranks, {.units = units,
                                                 .resident_units = resident,
                                                 .overlap = overlap,
                                                 .find_unused_parameters = true});
        for (std::size_t rank = 0; rank < expected.size(); ++rank) {
          ASSERT_EQ(actual[rank].size(), expected[rank].size());
          for (std::size_t i = 0; i < expected[rank].size(); ++i)
            EXPECT_TRUE(torch::equal(actual[rank][i], expected[rank][i]))
                << ranks << " ranks, " << resident << " units: rank " << rank << ", tensor " << i;
        }
      }
  }
}

TEST_F(Offload, FindsGradientsThatAreNotFinite) {
  StandInDevices devices;
  note_calls(devices);
  run_on(2, devices, [&](ProcessGroup& group) {
    const auto net = std::make_shared<Net>();
    FullyShardedDataParallel fsdp(net, group, {.units = units, .offload = local_device(group)});
    FullyShardedOptimizer<SGD> sgd(fsdp, net->parameters(), torch::optim::SGDOptions(1e-2));
    std::string text;
    const auto fault = fault_of(
        [&] {
          const double factor = group.rank() == 1 ? std::numeric_limits<double>::infinity() : 1;
          fsdp(inputs(group.rank(), 0, local_device(group))).pow(2).mean().mul(factor).backward();
        },
        &text);
    EXPECT_EQ(fault, Fault::corrupt);
    EXPECT_NE(text.find("rank 1"), text.npos) << text;
    destroy_process_group(group);
  });
}

TEST_F(Offload, IsEditedAndSavedAsAnyOther) {
  StandInDevices devices;
  note_calls(devices);
  run_on(2, devices, [&](ProcessGroup& group) {
    const auto net = std::make_shared<Net>();
    FullyShardedDataParallel fsdp(net, group, {.units = units, .offload = local_device(group)});
    fsdp.edit_parameters([&] { net->b->bias.fill_(3); });
    fsdp.with_gathered({"b.bias"},
                       [&] { EXPECT_TRUE(net->b->bias.cpu().eq(3).all().item<bool>()); });
    std::string text;
    EXPECT_EQ(fault_of([&] { net->b->bias.sum(); }, &text), Fault::misuse);
    EXPECT_NE(text.find("unit b"), text.npos) << text;
    const StateDict state = state_of(fsdp)->state_dict();
    for (const auto& [name, tensor] : state.tensors)
      EXPECT_TRUE(tensor.of_rank_0 || tensor.data.is_cpu()) << name;
    destroy_process_group(group);
  });
}

TEST_F(Offload, GetsItsValuesInTheHostsMemory) {
  const auto make = [] { return std::make_shared<Net>(); };
  const auto expected = make();
  StandInDevices devices;
  note_calls(devices);
  run_on(2, devices, [&](ProcessGroup& group) {
    FullyShardedDataParallel fsdp(on_meta(make), group,
                                  {.units = units, .offload = local_device(group)});
    fsdp.initialize(make);
    fsdp.with_gathered([&] {
      const auto a = fsdp.module()->named_parameters(), b = expected->named_parameters();
      for (const auto& item : a)
        EXPECT_TRUE(torch::equal(item.value().detach().cpu(), b[item.key()])) << item.key();
    });
    destroy_process_group(group);
  });
}

TEST_F(Offload, RejectsAModuleOnTheDevice) {
  StandInDevices devices;
  note_calls(devices);
  run_on(1, devices, [&](ProcessGroup& group) {
    const auto net = std::make_shared<Net>();
    net->to(local_device(group));
    std::string text;
    EXPECT_EQ(
        fault_of([&] { FullyShardedDataParallel(net, group, {.offload = local_device(group)}); },
                 &text),
        Fault::unsupported);
    EXPECT_NE(text.find("a.weight"), text.npos) << text;
    destroy_process_group(group);
  });
}

}  // namespace
}  // namespace lockstep::offload_test
