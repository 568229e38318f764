// Fits a small network by L-BFGS, which evaluates the loss several times in a step.

// SPDX-License-Identifier: Apache-2.0
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <iostream>

int main() {
  auto world = lockstep::init_process_group();
  torch::manual_seed(1);
  torch::Tensor x = torch::rand({60, 1}) * 6 - 3;
  torch::Tensor y = torch::sin(x);
  x = x.slice(0, world.rank(), torch::nullopt, world.size());
  y = y.slice(0, world.rank(), torch::nullopt, world.size());

  torch::nn::Sequential model(torch::nn::Linear(1, 8), torch::nn::Tanh(), torch::nn::Linear(8, 1));
  lockstep::DistributedDataParallel ddp(model, world);
  torch::optim::LBFGS lbfgs(
      model->parameters(),
      torch::optim::LBFGSOptions(1).max_iter(10).line_search_fn("strong_wolfe"));
  for (int step = 0; step < 3; ++step) {
    const torch::Tensor loss = lbfgs.step(lockstep::average_loss(ddp, [&] {
      lbfgs.zero_grad();
      const torch::Tensor error = torch::mse_loss(ddp(x), y);
      error.backward();
      return error;
    }));
    if (world.rank() == 0)
      std::cout << "step " << step << ": loss " << loss.item<double>() << std::endl;
  }
  if (world.rank() == 0) torch::save(model, "lbfgs.pt");
  lockstep::destroy_process_group(world);
  return 0;
}
