// A variational autoencoder, whose forward() returns a struct and whose loss is a sum.

// SPDX-License-Identifier: Apache-2.0
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <iostream>

struct Coded {
  torch::Tensor image, mean, log_variance;
};

template <class Visit>
void for_each_tensor(const Coded& coded, Visit& visit) {
  for (const auto* tensor : {&coded.image, &coded.mean, &coded.log_variance}) visit(*tensor);
}

struct Vae : torch::nn::Module {
  explicit Vae(const lockstep::ProcessGroup& group) : world(group) {}

  const lockstep::ProcessGroup world;
  torch::nn::Linear encode{register_module("encode", torch::nn::Linear(16, 32))};
  torch::nn::Linear mean{register_module("mean", torch::nn::Linear(32, 4))};
  torch::nn::Linear log_variance{register_module("log_variance", torch::nn::Linear(32, 4))};
  torch::nn::Linear widen{register_module("widen", torch::nn::Linear(4, 32))};
  torch::nn::Linear decode{register_module("decode", torch::nn::Linear(32, 16))};

  Coded forward(const torch::Tensor& x) {
    const torch::Tensor hidden = torch::relu(encode(x));
    const torch::Tensor m = mean(hidden);
    const torch::Tensor v = log_variance(hidden);
    torch::Tensor noise = torch::randn({m.size(0) * world.size(), 4});
    noise = noise.slice(0, world.rank(), torch::nullopt, world.size());
    const torch::Tensor code = m + noise * torch::exp(v / 2);
    return {torch::sigmoid(decode(torch::relu(widen(code)))), m, v};
  }
};

torch::Tensor loss_of(const Coded& coded, const torch::Tensor& x) {
  const torch::Tensor error =
      torch::binary_cross_entropy(coded.image, x, {}, torch::Reduction::Sum);
  const torch::Tensor& v = coded.log_variance;
  return error - 0.5 * torch::sum(1 + v - coded.mean.pow(2) - v.exp());
}

int main() {
  auto world = lockstep::init_process_group();
  torch::manual_seed(1);
  const torch::Tensor images = torch::rand({120, 16}).round();
  auto model = std::make_shared<Vae>(world);
  lockstep::DistributedDataParallel ddp(model, world);
  torch::optim::Adam adam(model->parameters(), 1e-3);
  for (int epoch = 0; epoch < 3; ++epoch) {
    torch::Tensor total = torch::zeros({});
    for (torch::Tensor x : images.split(24)) {
      x = x.slice(0, world.rank(), torch::nullopt, world.size());
      adam.zero_grad();
      const torch::Tensor loss = loss_of(ddp(x), x);
      (loss * world.size()).backward();  // The mean over ranks is then the sum.
      adam.step();
      total += loss.detach();
    }
    lockstep::all_reduce(total, world);
    if (world.rank() == 0)
      std::cout << "epoch " << epoch << ": loss " << total.item<double>() / 120 << std::endl;
  }
  if (world.rank() == 0) torch::save(model, "vae.pt");
  lockstep::destroy_process_group(world);
  return 0;
}
