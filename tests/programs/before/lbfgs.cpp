// Fits a small network by L-BFGS, which evaluates the loss several times in a step.

// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>

#include <iostream>

int main() {
  torch::manual_seed(1);
  torch::Tensor x = torch::rand({60, 1}) * 6 - 3;
  torch::Tensor y = torch::sin(x);

  torch::nn::Sequential model(torch::nn::Linear(1, 8), torch::nn::Tanh(), torch::nn::Linear(8, 1));
  torch::optim::LBFGS lbfgs(
      model->parameters(),
      torch::optim::LBFGSOptions(1).max_iter(10).line_search_fn("strong_wolfe"));
  for (int step = 0; step < 3; ++step) {
    const torch::Tensor loss = lbfgs.step([&] {
      lbfgs.zero_grad();
      const torch::Tensor error = torch::mse_loss(model->forward(x), y);
      error.backward();
      return error;
    });
    std::cout << "step " << step << ": loss " << loss.item<double>() << std::endl;
  }
  torch::save(model, "lbfgs.pt");
  return 0;
}
