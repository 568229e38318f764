// A small model trained by DistributedDataParallel, on the CPU or on simulated CUDA devices.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>
#include <torch/types.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "lockstep/tensor/collectives.h"
#include "tests/cuda/net.h"
#include "tests/cuda/stand_in_cuda.h"
#include "tests/stand_in_engine.h"

namespace lockstep::test {

using Options = DistributedDataParallelOptions;
using Ddp = DistributedDataParallel<Net>;

enum class Place { cpu, cuda };

inline at::Device device_of(Place place, const ProcessGroup& group) {
  return place == Place::cpu ? at::Device(at::kCPU) : local_device(group);
}

inline std::vector<std::string> take_all_order_faults() {
  std::vector<std::string> all;
  for (c10::DeviceIndex device = 0; device < stand_in_devices; ++device)
    for (std::string& fault : take_order_faults(device)) all.push_back(std::move(fault));
  return all;
}

// Skipped if LibTorch itself has CUDA, which gpu_test.cpp tests. Streams must order a test's
// operations.
class OnStandIn : public testing::Test {
 protected:
  void SetUp() override {
    if (!stand_in_for_cuda()) GTEST_SKIP() << "LibTorch has CUDA itself: gpu_test tests that";
    take_all_order_faults();
  }
  void TearDown() override {
    for (const std::string& fault : take_all_order_faults()) ADD_FAILURE() << fault;
  }
};

inline void note_calls(StandInDevices& devices) {
  devices.on_call = [](int, const Buffer& data) {
    note_call(static_cast<c10::DeviceIndex>(data.device_index), data.stream,
              {static_cast<const std::byte*>(data.data), data.bytes()});
  };
}

// Calls `train` on each rank. Returns its model's defined parameters, buffers and gradients in CPU
// memory.
inline std::vector<std::vector<torch::Tensor>> trained(
    Place place, int ranks, const std::function<void(ProcessGroup&, std::shared_ptr<Net>)>& train,
    StandInDevices* devices = nullptr) {
  StandInDevices own;
  note_calls(own);
  std::vector<std::vector<torch::Tensor>> all(static_cast<std::size_t>(ranks));
  run_on(ranks, devices != nullptr ? *devices : own, [&](ProcessGroup& group) {
    auto net = std::make_shared<Net>();
    net->to(device_of(place, group));
    train(group, net);
    auto& mine = all[static_cast<std::size_t>(group.rank())];
    for (const auto& parameter : net->parameters()) mine.push_back(parameter.detach().cpu());
    for (const auto& buffer : net->buffers()) mine.push_back(buffer.cpu());
    for (const auto& parameter : net->parameters())
      if (parameter.grad().defined()) mine.push_back(parameter.grad().cpu());
    destroy_process_group(group);
  });
  return all;
}

// Expects equal bits on the CPU and on simulated devices.
inline void expect_same_on_both(
    int ranks, const std::function<void(Place, ProcessGroup&, std::shared_ptr<Net>)>& train) {
  const auto on = [&](Place place) {
    return trained(place, ranks, [&](ProcessGroup& group, const std::shared_ptr<Net>& net) {
      train(place, group, net);
    });
  };
  const auto expected = on(Place::cpu);
  const auto actual = on(Place::cuda);
  for (std::size_t rank = 0; rank < expected.size(); ++rank) {
    ASSERT_EQ(actual[rank].size(), expected[rank].size());
    for (std::size_t i = 0; i < expected[rank].size(); ++i)
      EXPECT_TRUE(torch::equal(actual[rank][i], expected[rank][i]))
          << "rank " << rank << ", tensor " << i;
  }
}

}  // namespace lockstep::test
