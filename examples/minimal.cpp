// The program of README.md: trains on Fashion-MNIST, on as many ranks as the launcher starts.

// SPDX-License-Identifier: Apache-2.0
#include <lockstep/toolkit.h>

struct Net : torch::nn::Module {
  torch::nn::Conv2d conv{register_module("conv", torch::nn::Conv2d(1, 16, 3))};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(16 * 13 * 13, 10))};

  torch::Tensor forward(torch::Tensor x) {
    x = torch::max_pool2d(torch::relu(conv(x)), 2);
    return torch::log_softmax(out(x.flatten(1)), 1);
  }
};

int main() {
  auto world = lockstep::init_process_group();          // RANK, WORLD_SIZE, ... from any launcher
  auto model = std::make_shared<Net>();                 // any torch::nn::Module with any forward()
  lockstep::DistributedDataParallel ddp(model, world);  // gradients are averaged in backward()
  torch::optim::Adam adam(model->parameters(), 1e-3);
  lockstep::IdxDataset train("fashion-mnist", /*train=*/true);
  lockstep::DistributedSampler sampler(*train.size(), world);  // deals the samples to the ranks
  lockstep::DataLoader loader(train, sampler, world, {.batch_size = 64});  // fills batches ahead
  lockstep::Progress progress(5 * loader.size(), {.enabled = world.rank() == 0});
  for (int epoch = 0; epoch < 5; ++epoch) {
    sampler.set_epoch(epoch);
    for (auto& batch : loader) {
      adam.zero_grad();
      auto loss = torch::nll_loss(ddp(batch.data), batch.target);
      loss.backward();
      adam.step();
      progress.step(batch.data.size(0) * world.size(), loss.item<double>());
    }
  }
  lockstep::destroy_process_group(world);
}
