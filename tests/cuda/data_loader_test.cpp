// Batches that a DataLoader copies to a device.

// SPDX-License-Identifier: Apache-2.0
#include "lockstep/data/data_loader.h"

#include <torch/types.h>

#include <cstddef>
#include <set>
#include <vector>

#include "lockstep/data/tensor_dataset.h"
#include "tests/cuda/trained.h"

namespace lockstep::data_loader_test {
namespace {

using namespace test;

class DataLoaderOnCuda : public OnStandIn {};

// A dataset that records whether its rows are in pinned memory.
class Noting : public TensorDataset {
 public:
  using TensorDataset::TensorDataset;

  void fill(const BatchRows& rows) const override {
    EXPECT_TRUE(rows.data.is_pinned() && rows.target.is_pinned());
    TensorDataset::fill(rows);
  }
};

TEST_F(DataLoaderOnCuda, FillsPinnedMemoryAndCopiesItWithoutWaiting) {
  const at::Device device(at::kCUDA, 1);
  const torch::Tensor data = torch::rand({40, 3, 4, 5});
  const torch::Tensor target = torch::arange(40);
  const Noting dataset(data, target);
  const DistributedSampler sampler(40, 1, 0);
  DataLoader loader(dataset, sampler,
                    {.batch_size = 8,
                     .threads = 2,
                     .memory_format = torch::MemoryFormat::ChannelsLast,
                     .device = device});
  std::vector<Batch> batches;  // Kept: none may be overwritten.
  take_host_waits(device.index());
  for (const Batch& batch : loader) batches.push_back(batch);
  EXPECT_EQ(take_host_waits(device.index()), 0);

  std::set<std::size_t> seen;
  for (const Batch& batch : batches) {
    EXPECT_EQ(batch.data.device(), device);
    EXPECT_EQ(batch.target.device(), device);
    EXPECT_TRUE(batch.data.is_contiguous(torch::MemoryFormat::ChannelsLast));
    const std::vector<std::int64_t> indices(batch.indices.begin(), batch.indices.end());
    EXPECT_TRUE(torch::equal(batch.data.cpu(), data.index_select(0, torch::tensor(indices))));
    EXPECT_TRUE(torch::equal(batch.target.cpu(), torch::tensor(indices)));
    seen.insert(batch.indices.begin(), batch.indices.end());
  }
  EXPECT_EQ(seen.size(), 40U);
}

}  // namespace
}  // namespace lockstep::data_loader_test
