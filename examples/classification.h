// For pruning.cpp and distillation.cpp.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <lockstep/toolkit.h>

#include <chrono>
#include <cstdint>
#include <memory>

struct Epochs {
  int count = 1;
  std::size_t batch_size = 64;  // Per rank.
  std::uint64_t seed = 0;
};

// Returns the mean seconds of a step. `loss_of` takes logits, images and classes.
template <class Net, class LossOf>
double train(const std::shared_ptr<Net>& net, torch::optim::Optimizer& optimizer,
             const lockstep::IdxDataset& data, const Epochs& epochs,
             const lockstep::ProcessGroup& world, const LossOf& loss_of) {
  lockstep::DistributedDataParallel ddp(net, world);
  lockstep::DistributedSampler sampler(*data.size(), world, {.seed = epochs.seed});
  lockstep::DataLoader loader(data, sampler, world, {.batch_size = epochs.batch_size});
  net->train();
  const auto started = std::chrono::steady_clock::now();
  std::int64_t steps = 0;
  for (int epoch = 0; epoch < epochs.count; ++epoch) {
    sampler.set_epoch(static_cast<std::size_t>(epoch));
    for (auto& batch : loader) {
      optimizer.zero_grad();
      loss_of(ddp(batch.data), batch.data, batch.target).backward();
      optimizer.step();
      ++steps;
    }
  }
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - started;
  return steps == 0 ? 0 : passed.count() / static_cast<double>(steps);
}

// Share of correctly classified images, divided among the ranks.
template <class Net>
double accuracy(Net& net, const lockstep::IdxDataset& data, const lockstep::ProcessGroup& world) {
  lockstep::DistributedSampler sampler(*data.size(), world, {.shuffle = false, .pad = false});
  lockstep::DataLoader loader(data, sampler, world, {.batch_size = 500});
  const torch::NoGradGuard no_grad;
  net.eval();
  torch::Tensor right = torch::zeros({1}, torch::kLong);
  for (auto& batch : loader) right += net.forward(batch.data).argmax(1).eq(batch.target).sum();
  lockstep::all_reduce(right, world);
  return right.template item<double>() / static_cast<double>(*data.size());
}
