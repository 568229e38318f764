// Trains a TorchScript module, which Python or another program has saved.

// SPDX-License-Identifier: Apache-2.0
#include <torch/script.h>
#include <torch/torch.h>

#include <iostream>
#include <vector>

int main() {
  torch::manual_seed(1);
  const torch::Tensor points = torch::rand({120, 2}) * 2 - 1;
  const torch::Tensor distances = points.norm(2, 1, /*keepdim=*/true);

  torch::jit::Module net = torch::jit::load("scripted.pt");
  std::vector<torch::Tensor> parameters;
  for (const torch::Tensor& parameter : net.parameters()) parameters.push_back(parameter);
  torch::optim::SGD sgd(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int epoch = 0; epoch < 5; ++epoch) {
    torch::Tensor total = torch::zeros({});
    for (std::int64_t begin = 0; begin < 120; begin += 24) {
      const torch::Tensor x = points.slice(0, begin, begin + 24);
      const torch::Tensor y = distances.slice(0, begin, begin + 24);
      sgd.zero_grad();
      const torch::Tensor loss = torch::mse_loss(net.forward({x}).toTensor(), y);
      loss.backward();
      sgd.step();
      total += loss.detach();
    }
    std::cout << "epoch " << epoch << ": loss " << total.item<double>() / 5 << std::endl;
  }
  net.save("script.pt");
  return 0;
}
