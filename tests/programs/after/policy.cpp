// Reinforcement learning: a policy learns to balance a cart, from twelve episodes at a time. It
// stops once the episodes are long enough.

// SPDX-License-Identifier: Apache-2.0
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <iostream>
#include <vector>

struct Policy : torch::nn::Module {
  torch::nn::Linear hidden{register_module("hidden", torch::nn::Linear(2, 16))};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(16, 1))};

  // The logit of a push to the right, for each cart.
  torch::Tensor forward(const torch::Tensor& position, const torch::Tensor& velocity) {
    return out(torch::tanh(hidden(torch::stack({position, velocity}, 1)))).squeeze(1);
  }
};

int main() {
  auto world = lockstep::init_process_group();
  torch::manual_seed(1);
  auto policy = std::make_shared<Policy>();
  lockstep::DistributedDataParallel ddp(policy, world,
                                        {.mean = lockstep::GradientMean::over_samples});
  torch::optim::Adam adam(policy->parameters(), 5e-2);
  for (int iteration = 0; iteration < 60; ++iteration) {
    torch::Tensor position = torch::rand({12}) - 0.5;
    position = position.slice(0, world.rank(), torch::nullopt, world.size());
    torch::Tensor velocity = torch::zeros_like(position);
    torch::Tensor alive = torch::ones_like(position);
    std::vector<torch::Tensor> log_probabilities, rewards;
    for (int time = 0; time < 30; ++time) {
      const torch::Tensor logits = ddp(position, velocity);
      torch::Tensor chance = torch::rand({12});
      chance = chance.slice(0, world.rank(), torch::nullopt, world.size());
      const torch::Tensor push = (chance < torch::sigmoid(logits.detach())).to(logits.dtype());
      velocity = velocity + 0.2 * push - 0.1;
      position = position + velocity;
      log_probabilities.push_back(torch::log_sigmoid(logits * (2 * push - 1)) * alive);
      rewards.push_back(alive);
      alive = alive * (position.abs() < 1).to(alive.dtype());
    }

    const torch::Tensor reward = torch::stack(rewards);
    const torch::Tensor gain = reward.flip(0).cumsum(0).flip(0);
    torch::Tensor steps = reward.sum();
    ddp.count_samples(steps.item<double>());
    lockstep::all_reduce(steps, world);
    torch::Tensor mean = (gain * reward).sum() / steps;
    lockstep::all_reduce(mean, world);
    torch::Tensor variance = ((gain - mean).pow(2) * reward).sum() / steps;
    lockstep::all_reduce(variance, world);
    const torch::Tensor advantage = (gain - mean) / (variance.sqrt() + 1e-6);
    const torch::Tensor loss = -(torch::stack(log_probabilities) * advantage).sum();
    adam.zero_grad();
    loss.backward();
    adam.step();

    const double length = steps.item<double>() / 12;
    if (world.rank() == 0)
      std::cout << "iteration " << iteration << ": " << length << " steps" << std::endl;
    if (length > 25) break;
  }
  if (world.rank() == 0) torch::save(policy, "policy.pt");
  lockstep::destroy_process_group(world);
  return 0;
}
