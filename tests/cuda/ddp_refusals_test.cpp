// Errors for CUDA tensors.

// SPDX-License-Identifier: Apache-2.0
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>

#include <string>

#include "lockstep/nn/sync_batch_norm.h"
#include "lockstep/observe/memory_report.h"
#include "lockstep/parallel/deterministic/deterministic_data_parallel.h"
#include "lockstep/parallel/pipeline/pipeline.h"
#include "lockstep/parallel/shard/zero_redundancy_optimizer.h"
#include "tests/cuda/trained.h"
#include "tests/fault_of.h"

namespace lockstep::ddp_refusals_test {
namespace {

using namespace test;

class RefusalsOnCuda : public OnStandIn {};

// Calls `call` on two ranks, and expects an Error with `expected` in its message on each.
void expect_refusal(const std::function<void(ProcessGroup&, std::shared_ptr<Net>)>& call,
                    const std::string& expected) {
  trained(Place::cuda, 2, [&](ProcessGroup& group, const std::shared_ptr<Net>& net) {
    std::string text;
    EXPECT_EQ(fault_of([&] { call(group, net); }, &text), Fault::unsupported) << text;
    const std::string device = local_device(group).str();
    std::string here = expected;
    if (const auto at = here.find("DEVICE"); at != std::string::npos) here.replace(at, 6, device);
    EXPECT_NE(text.find(here), std::string::npos) << text;
  });
}

TEST_F(RefusalsOnCuda, SharedParametersAreInCpuMemory) {
  expect_refusal([](auto& group, auto net) { Ddp ddp(net, group, {.share_parameters = true}); },
                 "share_parameters: a.weight is on DEVICE");
}

TEST_F(RefusalsOnCuda, SoIsWhatIsTheSameOnEveryNumberOfRanks) {
  torch::set_num_threads(1);
  expect_refusal(
      [](auto& group, auto net) { DeterministicDataParallel ddp(net, group, {.microbatches = 2}); },
      "DeterministicDataParallel: only in CPU memory, and parameter a.weight is on DEVICE");
}

TEST_F(RefusalsOnCuda, SoAreShardedGradients) {
  expect_refusal(
      [](auto& group, auto net) {
        Ddp ddp(net, group);
        ZeroRedundancyOptimizer<torch::optim::Adam> adam(net->parameters(), group,
                                                         torch::optim::AdamOptions());
        ddp.shard_gradients(adam);
      },
      "shard_gradients: only in CPU memory, and parameter a.weight is on DEVICE");
}

TEST_F(RefusalsOnCuda, SoAreInputsOfSyncBatchNorm) {
  expect_refusal(
      [](auto& group, auto) {
        const at::Device device = local_device(group);
        SyncBatchNorm norm(6);
        norm->synchronize(group, "norm");
        norm->to(device);
        norm(inputs(group.rank(), 0, device));
      },
      "norm: the input is on DEVICE, and SyncBatchNorm works in CPU memory only");
}

TEST_F(RefusalsOnCuda, SoAreLayersOfAPipeline) {
  expect_refusal(
      [](auto& group, auto) {
        const at::Device device = local_device(group);
        LayerList layers;
        for (const char* name : {"one", "two"})
          layers.add(name, [&] {
            torch::nn::Linear linear(2, 2);
            linear->to(device);
            return linear;
          });
        Pipeline(layers, group);
      },
      "Pipeline: one.weight is on DEVICE");
}

TEST_F(RefusalsOnCuda, AMemoryReportIsOfCpuMemory) {
  expect_refusal(
      [](auto& group, auto net) {
        Ddp ddp(net, group);
        memory_report(ddp, torch::optim::Adam(net->parameters()));
      },
      "memory_report: only CPU memory is measured, but parameter a.weight is on DEVICE");
}

TEST_F(RefusalsOnCuda, ParametersAreOnOneDevice) {
  expect_refusal(
      [](auto& group, auto net) {
        net->extra->to(at::kCPU);
        Ddp ddp(net, group);
      },
      "gradients are averaged on one device, but parameter a.weight is on DEVICE and extra.weight "
      "on cpu");
  expect_refusal(
      [](auto& group, auto net) {
        net->extra->to(at::Device(at::kCUDA, 3));
        Ddp ddp(net, group);
      },
      "and extra.weight on cuda:3");
}

// Row: another device
TEST_F(RefusalsOnCuda, ParametersStayWhereTheyWere) {
  trained(Place::cuda, 2, [](ProcessGroup& group, const std::shared_ptr<Net>&) {
    auto net = std::make_shared<Net>();
    Ddp ddp(net, group);
    net->to(local_device(group));
    std::string text;
    const auto pass = [&] { ddp(inputs(0, 0, local_device(group))).sum().backward(); };
    EXPECT_EQ(fault_of(pass, &text), Fault::misuse);
    EXPECT_NE(text.find("on rank 0 parameter a.weight was moved to "), text.npos) << text;
    EXPECT_NE(text.find(" after DistributedDataParallel was made"), text.npos) << text;
  });
}

TEST_F(RefusalsOnCuda, AllRanksUseTheSameKindOfDevice) {
  trained(Place::cuda, 2, [](ProcessGroup& group, const std::shared_ptr<Net>& net) {
    if (group.rank() == 1) net->to(at::kCPU);
    std::string text;
    EXPECT_EQ(fault_of([&] { Ddp ddp(net, group); }, &text), Fault::mismatch);
    EXPECT_NE(text.find("rank 0 has a.weight Float [400, 6] on cuda"), std::string::npos) << text;
    EXPECT_NE(text.find("rank 1 has a.weight Float [400, 6],"), std::string::npos) << text;
  });
}

TEST_F(RefusalsOnCuda, AnEngineIsNeeded) {
  StandInDevices devices;
  devices.why_not = "there is no NVIDIA driver here";
  trained(
      Place::cuda, 2,
      [](ProcessGroup& group, const std::shared_ptr<Net>& net) {
        std::string text;
        EXPECT_EQ(fault_of([&] { Ddp ddp(net, group); }, &text), Fault::unsupported);
        EXPECT_NE(text.find("there is no NVIDIA driver here"), std::string::npos) << text;
      },
      &devices);
}

}  // namespace
}  // namespace lockstep::ddp_refusals_test
