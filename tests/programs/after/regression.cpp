// Fits a plane by gradient descent on all samples, until the loss hardly falls any more.

// SPDX-License-Identifier: Apache-2.0
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <iostream>
#include <limits>

int main() {
  auto world = lockstep::init_process_group();
  torch::manual_seed(1);
  torch::Tensor x = torch::rand({60, 3});
  torch::Tensor y = 2 * x.sum(1, /*keepdim=*/true) + 1 + 0.1 * torch::randn({60, 1});
  x = x.slice(0, world.rank(), torch::nullopt, world.size());
  y = y.slice(0, world.rank(), torch::nullopt, world.size());

  torch::nn::Linear model(3, 1);
  lockstep::DistributedDataParallel ddp(model, world);
  torch::optim::SGD sgd(model->parameters(), 0.1);
  double best = std::numeric_limits<double>::infinity();
  int step = 0;
  for (; step < 1000; ++step) {
    sgd.zero_grad();
    const torch::Tensor loss = torch::mse_loss(ddp(x), y);
    loss.backward();
    sgd.step();
    lockstep::all_reduce(loss, world, lockstep::ReduceOp::average);
    if (loss.item<double>() > best - 1e-4) break;
    best = loss.item<double>();
  }
  if (world.rank() == 0) {
    std::cout << "stopped after step " << step << ", loss " << best << std::endl;
    torch::save(model, "regression.pt");
  }
  lockstep::destroy_process_group(world);
  return 0;
}
