// Classifies points in a plane by a small network.

// SPDX-License-Identifier: Apache-2.0
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <iostream>
#include <vector>

int main() {
  auto world = lockstep::init_process_group();
  torch::manual_seed(1);
  const torch::Tensor points = torch::rand({240, 2}) * 2 - 1;
  const torch::Tensor inside = (points.norm(2, 1) < 0.8).to(torch::kLong);

  torch::nn::Sequential model(torch::nn::Linear(2, 32), torch::nn::Tanh(),
                              torch::nn::Linear(32, 2));
  for (const torch::Tensor& parameter : model->parameters()) lockstep::broadcast(parameter, world);
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.5).momentum(0.9));
  for (int epoch = 0; epoch < 10; ++epoch) {
    torch::Tensor correct = torch::zeros({}, torch::kLong);
    for (std::int64_t begin = 0; begin < 240; begin += 24) {
      const torch::Tensor x = points.slice(0, begin + world.rank(), begin + 24, world.size());
      const torch::Tensor target = inside.slice(0, begin + world.rank(), begin + 24, world.size());
      sgd.zero_grad();
      const torch::Tensor scores = model->forward(x);
      torch::cross_entropy_loss(scores, target).backward();
      std::vector<lockstep::Work> works;
      for (const torch::Tensor& parameter : model->parameters())
        works.push_back(
            lockstep::all_reduce_async(parameter.grad(), world, lockstep::ReduceOp::average));
      for (lockstep::Work& work : works) work.wait();
      sgd.step();
      correct += (scores.argmax(1) == target).sum();
    }
    lockstep::all_reduce(correct, world);
    if (world.rank() == 0)
      std::cout << "epoch " << epoch << ": " << correct.item<int64_t>() << " of 240 correct\n";
  }
  if (world.rank() == 0) torch::save(model, "by_hand.pt");
  lockstep::destroy_process_group(world);
  return 0;
}
