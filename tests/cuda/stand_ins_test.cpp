// Tests of the simulated devices: calls that would block a thread are counted, and none blocks
// forever.

// SPDX-License-Identifier: Apache-2.0
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/_copy_from.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/mul.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <future>
#include <memory>
#include <thread>

#include "tests/cuda/stand_in_cuda.h"
#include "tests/fault_of.h"
#include "tests/stand_in_engine.h"

namespace lockstep::stand_ins_test {
namespace {

using namespace std::chrono_literals;
using namespace test;
using Kind = StreamEntry::Kind;

const c10::Device device(c10::DeviceType::CUDA, 3);

class StandInCuda : public testing::Test {
 protected:
  void SetUp() override {
    if (!stand_in_for_cuda()) GTEST_SKIP() << "LibTorch has CUDA itself";
    take_stream_entries(device.index());
    take_host_waits(device.index());
    take_order_faults(device.index());
  }
};

TEST_F(StandInCuda, CountsEachWayToWaitForTheDevice) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  const torch::Tensor tensor = torch::ones({3}, device);
  torch::Tensor host = torch::empty({3});
  c10::Event event(device.type());
  event.record(guard.getStream(device));
  const auto waits = [&](const auto& call) {
    take_host_waits(device.index());
    call();
    return take_host_waits(device.index());
  };
  EXPECT_EQ(waits([&] { tensor[0].item<float>(); }), 1);
  EXPECT_EQ(waits([&] { tensor.cpu(); }), 1);
  EXPECT_EQ(waits([&] { host.copy_(tensor); }), 1);
  EXPECT_EQ(waits([&] { at::_copy_from(tensor, host); }), 1);
  EXPECT_EQ(waits([&] { guard.getStream(device).synchronize(); }), 1);
  EXPECT_EQ(waits([&] { event.synchronize(); }), 1);
  EXPECT_EQ(waits([&] { guard.synchronizeDevice(device.index()); }), 1);
  EXPECT_EQ(waits([&] { at::detail::getCUDAHooks().deviceSynchronize(device.index()); }), 1);

  EXPECT_EQ(waits([&] { tensor.add(1).mul_(2).copy_(tensor); }), 0);
  EXPECT_EQ(waits([&] { host.to(device); }), 0);
  EXPECT_EQ(waits([&] { event.block(guard.getStream(device)); }), 0);
}

TEST_F(StandInCuda, NotesWhatKernelsWriteTo) {
  torch::Tensor half = torch::ones({4}, device).narrow(0, 2, 2);
  const c10::impl::VirtualGuardImpl guard(device.type());
  const c10::StreamGuard on_other(guard.getStreamFromGlobalPool(device));
  take_stream_entries(device.index());
  at::mul_out(half, half, half);
  const auto entries = take_stream_entries(device.index());
  ASSERT_EQ(entries.size(), 1U);
  EXPECT_EQ(entries[0].kind, Kind::write);
  EXPECT_EQ(entries[0].stream, on_other.current_stream().id());
  EXPECT_EQ(static_cast<const void*>(entries[0].memory.data()), half.const_data_ptr());
  EXPECT_EQ(entries[0].memory.size(), 2 * sizeof(float));
}

TEST_F(StandInCuda, FindsStreamsThatDoNotWaitForEachOther) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  const c10::Stream other = guard.getStreamFromGlobalPool(device);
  const auto on_other = [&](const auto& call) {
    const c10::StreamGuard here(other);
    call();
  };
  const auto is_in_order = [] { return take_order_faults(device.index()).empty(); };
  torch::Tensor tensor = torch::ones({4}, device);
  on_other([&] { tensor.sum(); });
  EXPECT_FALSE(is_in_order()) << "it reads what was written";

  c10::Event written(device.type());
  written.record(guard.getStream(device));
  written.block(other);
  on_other([&] { tensor.mul_(2); });
  EXPECT_TRUE(is_in_order());
  tensor.add_(1);
  EXPECT_FALSE(is_in_order()) << "the other stream may still write it";
  on_other([&] { at::_foreach_norm({tensor}, 2); });
  EXPECT_FALSE(is_in_order()) << "it reads one of a list";
  tensor.reset();
  EXPECT_FALSE(is_in_order()) << "the other stream may still read it";

  tensor = torch::ones({4}, device);
  tensor.cpu();
  on_other([&] { tensor.add_(1); });
  tensor.record_stream(other);
  tensor.reset();
  EXPECT_TRUE(is_in_order());
}

class StandInEngine : public testing::Test {
 protected:
  std::unique_ptr<comm::DeviceCommunicator> rank(int index) {
    return engine_of(devices_)->make({.name = "both", .world_ranks = {0, 1}, .rank = index}, index,
                                     no_deadline);
  }
  static Fault fault_of_one(comm::DeviceCommunicator& communicator) {
    float value = 1;
    return fault_of([&] {
      communicator.run({.signature = {.count = 1, .operation = Operation::all_reduce},
                        .output = {.data = &value, .count = 1, .device = DeviceKind::cuda}});
    });
  }

  StandInDevices devices_;
};

TEST_F(StandInEngine, EndsTheWaitOfARankThatIsCancelledAndAllLaterCalls) {
  std::promise<void> called;
  devices_.on_call = [&](int, const Buffer&) { called.set_value(); };
  const auto alone = rank(0);
  const auto start = Clock::now();
  std::jthread canceller([&] {
    called.get_future().wait();
    alone->cancel();
  });
  EXPECT_EQ(fault_of_one(*alone), Fault::aborted);
  EXPECT_EQ(fault_of_one(*alone), Fault::aborted);
  EXPECT_LT(seconds_since(start), 5);
  EXPECT_EQ(devices_.cancelled, 1);
}

TEST_F(StandInEngine, WaitsNotForEverForARankThatDoesNotCome) {
  devices_.patience = 50ms;
  EXPECT_EQ(fault_of_one(*rank(1)), Fault::timeout);
}

}  // namespace
}  // namespace lockstep::stand_ins_test
