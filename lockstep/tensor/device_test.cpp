// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include "lockstep/comm/in_process.h"
#include "lockstep/tensor/collectives.h"
#include "tests/fault_of.h"

namespace lockstep::tensor::device_test {
namespace {

using test::fault_of;

int cuda_devices() {
  if (!c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA)) return 0;
  return c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).deviceCount();
}

TEST(Device, IsRefusedWhereThereIsNone) {
  if (cuda_devices() > 0) GTEST_SKIP() << "there is a CUDA device here";
  run_in_process(1, [](ProcessGroup& group) {
    std::string text;
    EXPECT_EQ(fault_of([&] { local_device(group); }, &text), Fault::unsupported);
    EXPECT_NE(text.find("local_device: "), std::string::npos) << text;
  });
}

TEST(Device, IsTheOneOfTheLocalRank) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no CUDA device here";
  run_in_process(2, [](ProcessGroup& group) {
    EXPECT_EQ(local_device(group).index(), group.rank() % cuda_devices());
  });
}

TEST(Device, IsRefusedByAGroupThatMovesCpuMemoryOnly) {
  if (cuda_devices() == 0) GTEST_SKIP() << "no CUDA device here";
  run_in_process(1, [](ProcessGroup& group) {
    const at::Tensor tensor = at::full({4}, 1.0, at::TensorOptions().device(local_device(group)));
    EXPECT_EQ(fault_of([&] { all_reduce(tensor, group); }), Fault::unsupported);
    EXPECT_EQ(fault_of([&] { all_reduce_async(tensor, group); }), Fault::unsupported);
  });
}

TEST(Device, IsRejectedIfItsKindIsUnsupported) {
  run_in_process(1, [](ProcessGroup& group) {
    const at::Tensor tensor = at::empty({4}, at::TensorOptions().device(c10::DeviceType::Meta));
    EXPECT_EQ(fault_of([&] { all_reduce(tensor, group); }), Fault::unsupported);
  });
}

}  // namespace
}  // namespace lockstep::tensor::device_test
