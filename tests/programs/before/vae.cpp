// A variational autoencoder, whose forward() returns a struct and whose loss is a sum.

// SPDX-License-Identifier: Apache-2.0
#include <torch/torch.h>

#include <iostream>

struct Coded {
  torch::Tensor image, mean, log_variance;
};

struct Vae : torch::nn::Module {
  torch::nn::Linear encode{register_module("encode", torch::nn::Linear(16, 32))};
  torch::nn::Linear mean{register_module("mean", torch::nn::Linear(32, 4))};
  torch::nn::Linear log_variance{register_module("log_variance", torch::nn::Linear(32, 4))};
  torch::nn::Linear widen{register_module("widen", torch::nn::Linear(4, 32))};
  torch::nn::Linear decode{register_module("decode", torch::nn::Linear(32, 16))};

  Coded forward(const torch::Tensor& x) {
    const torch::Tensor hidden = torch::relu(encode(x));
    const torch::Tensor m = mean(hidden);
    const torch::Tensor v = log_variance(hidden);
    const torch::Tensor noise = torch::randn_like(m);
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
  torch::manual_seed(1);
  const torch::Tensor images = torch::rand({120, 16}).round();
  auto model = std::make_shared<Vae>();
  torch::optim::Adam adam(model->parameters(), 1e-3);
  for (int epoch = 0; epoch < 3; ++epoch) {
    torch::Tensor total = torch::zeros({});
    for (torch::Tensor x : images.split(24)) {
      adam.zero_grad();
      const torch::Tensor loss = loss_of(model->forward(x), x);
      loss.backward();
      adam.step();
      total += loss.detach();
    }
    std::cout << "epoch " << epoch << ": loss " << total.item<double>() / 120 << std::endl;
  }
  torch::save(model, "vae.pt");
  return 0;
}
