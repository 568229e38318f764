// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <torch/types.h>

#include <string>
#include <vector>

#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "lockstep/tensor/activation_checkpoint.h"
#include "lockstep/tensor/named_tensors.h"
#include "tests/ranks.h"

namespace lockstep::checkpointed_blocks_test {
namespace {

using test::Rank;
using test::Ranks;

struct Block : torch::nn::Module {
  Block() { register_module("fc", fc); }
  torch::Tensor forward(const torch::Tensor& x) {
    return x + torch::dropout(torch::relu(fc->forward(x)), 0.2, is_training());
  }
  torch::nn::Linear fc{96, 96};  // Too large for a bucket.
};

struct Net : torch::nn::Module {
  explicit Net(bool with_checkpoints) : checkpoints(with_checkpoints) {
    torch::manual_seed(0);
    for (int i = 0; i < 4; ++i)
      blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<Block>()));
    register_module("out", out = torch::nn::Linear(96, 2));
  }
  torch::Tensor forward(torch::Tensor x) {
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (i == 2 && skips_third) continue;
      x = checkpoints ? activation_checkpoint(*blocks[i], x) : blocks[i]->forward(x);
    }
    return out->forward(x);
  }

  const bool checkpoints;
  bool skips_third = false;
  std::vector<std::shared_ptr<Block>> blocks;
  torch::nn::Linear out{nullptr};
};

std::vector<torch::Tensor> trained(const Rank& rank, const ProcessGroup& group, bool checkpoints,
                                   const DistributedDataParallelOptions& options) {
  const auto net = std::make_shared<Net>(checkpoints);
  DistributedDataParallel ddp(net, group, options);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  std::vector<torch::Tensor> seen;
  torch::manual_seed(100 + rank.rank);
  for (int step = 0; step < 4; ++step) {
    net->skips_third = options.find_unused_parameters && step % 2 == rank.rank;
    sgd.zero_grad();
    for (int part = 0; part < 2; ++part) {
      const auto no_sync = ddp.no_sync(part == 0);
      ddp(torch::randn({5, 96})).pow(2).mean().backward();
    }
    for (const auto& [name, parameter] : named_parameters(*net))
      seen.push_back(parameter.grad().defined() ? parameter.grad().clone() : torch::Tensor());
    sgd.step();
  }
  for (const auto& [name, parameter] : named_parameters(*net)) seen.push_back(parameter.detach());
  return seen;
}

const Ranks checkpoints("checkpoints", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  for (const bool unused : {false, true}) {
    const DistributedDataParallelOptions options{.find_unused_parameters = unused};
    const auto expected = trained(rank, group, false, options);
    const auto ours = trained(rank, group, true, options);
    ASSERT_EQ(ours.size(), expected.size());
    for (std::size_t i = 0; i < ours.size(); ++i) {
      ASSERT_EQ(ours[i].defined(), expected[i].defined()) << i;
      if (ours[i].defined()) {
        EXPECT_TRUE(torch::equal(ours[i], expected[i])) << i << (unused ? " unused" : "");
      }
    }
  }
  destroy_process_group(group);
});

TEST(CheckpointedBlocks, GetTheGradientsThatBlocksWithoutCheckpointsGetBitForBit) {
  for (const int ranks : {1, 2}) EXPECT_TRUE(all_succeeded(checkpoints.run(ranks)));
}

}  // namespace
}  // namespace lockstep::checkpointed_blocks_test
