// Trains a TorchScript module, which Python or another program has saved.

// SPDX-License-Identifier: Apache-2.0
#include <lockstep/lockstep.h>
#include <torch/script.h>
#include <torch/torch.h>

#include <iostream>
#include <vector>

int main() {
  auto world = lockstep::init_process_group();
  torch::manual_seed(1);
  const torch::Tensor points = torch::rand({120, 2}) * 2 - 1;
  const torch::Tensor distances = points.norm(2, 1, /*keepdim=*/true);

  torch::jit::Module net = torch::jit::load("scripted.pt");
  lockstep::DistributedDataParallel ddp(net, world);
  std::vector<torch::Tensor> parameters;
  for (const torch::Tensor& parameter : net.parameters()) parameters.push_back(parameter);
  torch::optim::SGD sgd(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
  for (int epoch = 0; epoch < 5; ++epoch) {
    torch::Tensor total = torch::zeros({});
    for (std::int64_t begin = 0; begin < 120; begin += 24) {
      const torch::Tensor x = points.slice(0, begin + world.rank(), begin + 24, world.size());
      const torch::Tensor y = distances.slice(0, begin + world.rank(), begin + 24, world.size());
      sgd.zero_grad();
      const torch::Tensor loss = torch::mse_loss(ddp(x).toTensor(), y);
      loss.backward();
      sgd.step();
      total += loss.detach();
    }
    lockstep::all_reduce(total, world, lockstep::ReduceOp::average);
    if (world.rank() == 0)
      std::cout << "epoch " << epoch << ": loss " << total.item<double>() / 5 << std::endl;
  }
  if (world.rank() == 0) net.save("script.pt");
  lockstep::destroy_process_group(world);
  return 0;
}
