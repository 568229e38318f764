// Collectives on CUDA tensors: single ones, lists, and unknown shapes.

// SPDX-License-Identifier: Apache-2.0
#include <torch/types.h>

#include <limits>
#include <set>
#include <string>

#include "lockstep/parallel/gradients/finite_check.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/tensor_lists.h"
#include "tests/cuda/trained.h"

namespace lockstep::tensors_test {
namespace {

using namespace test;

class TensorsOnCuda : public OnStandIn {};

// Tensors of several types, one not contiguous, one empty.
Tensors some(int rank, at::Device device) {
  return {torch::full({3, 2}, rank + 1.5, torch::TensorOptions(device)),
          torch::full({4}, rank + 1, torch::TensorOptions(device).dtype(torch::kLong)),
          torch::arange(6, torch::TensorOptions(device).dtype(torch::kFloat)).view({2, 3}).t(),
          torch::empty({0}, torch::TensorOptions(device)),
          torch::full({5}, rank + 2, torch::TensorOptions(device).dtype(torch::kLong))};
}

// Calls `collective` on both devices and expects equal tensors on every rank, each on its own
// device.
void expect_same_on_both(
    const std::function<void(const Tensors&, const ProcessGroup&)>& collective) {
  StandInDevices devices;
  run_on(2, devices, [&](ProcessGroup& group) {
    const Tensors expected = some(group.rank(), at::kCPU);
    const Tensors actual = some(group.rank(), local_device(group));
    collective(expected, group);
    collective(actual, group);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(actual[i].device(), local_device(group));
      EXPECT_TRUE(torch::equal(actual[i].cpu(), expected[i])) << i;
    }
    destroy_process_group(group);
  });
}

TEST_F(TensorsOnCuda, AreReducedAndBroadcastInLists) {
  expect_same_on_both(
      [](const Tensors& all, const auto& group) { all_reduce_coalesced(all, group); });
  expect_same_on_both(
      [](const Tensors& all, const auto& group) { reduce_coalesced(all, group, 1); });
  expect_same_on_both(
      [](const Tensors& all, const auto& group) { broadcast_coalesced(all, group, 1); });
}

TEST_F(TensorsOnCuda, TravelApartFromThoseInCpuMemory) {
  StandInDevices devices;
  std::set<std::size_t> counts;  // Numbers of elements on rank 0's device.
  devices.on_call = [&](int rank, const Buffer& data) {
    if (rank == 0) counts.insert(data.count);
  };
  run_on(2, devices, [](ProcessGroup& group) {
    Tensors mixed = some(group.rank(), local_device(group));
    for (const torch::Tensor& tensor : some(group.rank(), at::kCPU)) mixed.push_back(tensor);
    all_reduce_coalesced(mixed, group);
    const std::size_t half = mixed.size() / 2;
    for (std::size_t i = 0; i < half; ++i) {
      EXPECT_TRUE(mixed[i].is_cuda() && mixed[half + i].is_cpu());
      EXPECT_TRUE(torch::equal(mixed[i].cpu(), mixed[half + i])) << i;
    }
    EXPECT_FLOAT_EQ(mixed[0][0][0].item<float>(), 4);
    destroy_process_group(group);
  });
  EXPECT_EQ(devices.calls, (std::vector<std::string>{"all_reduce", "all_reduce"}));
  EXPECT_EQ(counts, (std::set<std::size_t>{9, 12})) << "the integers, and the floats";
}

TEST_F(TensorsOnCuda, ArriveInCpuMemoryWithUnknownShapes) {
  StandInDevices devices;
  run_on(2, devices, [](ProcessGroup& group) {
    const Tensors own = some(group.rank(), local_device(group));
    const auto expect = [](const Tensors& actual, int rank) {
      const Tensors expected = some(rank, at::kCPU);
      ASSERT_EQ(actual.size(), expected.size());
      for (std::size_t i = 0; i < expected.size(); ++i)
        EXPECT_TRUE(torch::equal(actual[i].cpu(), expected[i])) << i;
    };
    const Tensors broadcast = broadcast_tensors(own, group, 1);
    expect(broadcast, 1);
    EXPECT_EQ(broadcast[0].is_cuda(), group.rank() == 1) << "there they are the same ones";
    const auto gathered = all_gather_tensors(own, group);
    for (int rank = 0; rank < 2; ++rank) expect(gathered[static_cast<std::size_t>(rank)], rank);
    EXPECT_TRUE(gathered[0][0].is_cpu());
    const auto at_0 = gather_tensors(own, group, 0);
    if (group.rank() == 0) expect(at_0[1], 1);
    const Tensors second = some(1, local_device(group));
    expect(scatter_tensors(
               group.rank() == 0 ? std::vector<Tensors>{own, second} : std::vector<Tensors>{},
               group, 0),
           group.rank());
    destroy_process_group(group);
  });
  EXPECT_TRUE(devices.calls.empty()) << "only copies in CPU memory travel";
}

TEST_F(TensorsOnCuda, FiniteCheckFindsTheFirstThatIsNot) {
  const torch::TensorOptions options(at::Device(at::kCUDA, 0));
  std::vector<torch::Tensor> gradients = {
      torch::ones({3}, options), torch::Tensor(), torch::empty({0}, options),
      torch::full({2}, std::numeric_limits<float>::max(), options), torch::ones({4}, options)};
  const auto gradient_of = [&](std::size_t i) { return gradients[i]; };
  parallel::FiniteCheck check;
  EXPECT_EQ(check.first_non_finite(), std::nullopt);
  check.enqueue({3, 0}, gradient_of);
  check.enqueue({1, 2, 4}, gradient_of);
  EXPECT_EQ(check.first_non_finite(), std::nullopt);

  gradients[4][3] = -std::numeric_limits<float>::infinity();
  gradients[0][0] = std::numeric_limits<float>::quiet_NaN();
  check.enqueue({3, 2}, gradient_of);
  check.enqueue({4, 0}, gradient_of);
  EXPECT_EQ(check.first_non_finite(), 4U);
  EXPECT_EQ(check.first_non_finite(), std::nullopt) << "it was forgotten";
  check.enqueue({0}, gradient_of);
  check.clear();
  EXPECT_EQ(check.first_non_finite(), std::nullopt);
}

}  // namespace
}  // namespace lockstep::tensors_test
