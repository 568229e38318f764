// Classifies points in a plane by a small network.

// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>

#include <iostream>

int main() {
  torch::manual_seed(1);
  const torch::Tensor points = torch::rand({240, 2}) * 2 - 1;
  const torch::Tensor inside = (points.norm(2, 1) < 0.8).to(torch::kLong);

  torch::nn::Sequential model(torch::nn::Linear(2, 32), torch::nn::Tanh(),
                              torch::nn::Linear(32, 2));
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.5).momentum(0.9));
  for (int epoch = 0; epoch < 10; ++epoch) {
    torch::Tensor correct = torch::zeros({}, torch::kLong);
    for (std::int64_t begin = 0; begin < 240; begin += 24) {
      const torch::Tensor x = points.slice(0, begin, begin + 24);
      const torch::Tensor target = inside.slice(0, begin, begin + 24);
      sgd.zero_grad();
      const torch::Tensor scores = model->forward(x);
      torch::cross_entropy_loss(scores, target).backward();
      sgd.step();
      correct += (scores.argmax(1) == target).sum();
    }
    std::cout << "epoch " << epoch << ": " << correct.item<int64_t>() << " of 240 correct\n";
  }
  torch::save(model, "by_hand.pt");
  return 0;
}
