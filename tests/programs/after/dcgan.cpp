// Two networks with an optimizer each: one draws images, the other tells them from real ones.

// SPDX-License-Identifier: Apache-2.0
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <iostream>

namespace nn = torch::nn;

int main() {
  auto world = lockstep::init_process_group();
  torch::manual_seed(1);
  nn::Sequential generator(
      nn::ConvTranspose2d(nn::ConvTranspose2dOptions(6, 16, 4).bias(false)), nn::BatchNorm2d(16),
      nn::ReLU(),
      nn::ConvTranspose2d(nn::ConvTranspose2dOptions(16, 1, 4).stride(2).padding(1).bias(false)),
      nn::Tanh());
  nn::Sequential discriminator(
      nn::Conv2d(nn::Conv2dOptions(1, 16, 4).stride(2).padding(1).bias(false)),
      nn::LeakyReLU(nn::LeakyReLUOptions().negative_slope(0.2)), nn::Conv2d(16, 1, 4),
      nn::Sigmoid(), nn::Flatten(nn::FlattenOptions().start_dim(0)));
  lockstep::convert_sync_batchnorm(*generator, world);
  lockstep::DistributedDataParallel ddp_generator(generator, world);
  lockstep::DistributedDataParallel ddp_discriminator(discriminator, world);

  torch::optim::Adam drawing(generator->parameters(), torch::optim::AdamOptions(2e-3));
  torch::optim::Adam telling(discriminator->parameters(), torch::optim::AdamOptions(2e-3));
  for (int step = 0; step < 12; ++step) {
    torch::Tensor images = torch::sin(torch::rand({12, 1, 1, 1}).expand({12, 1, 8, 8}));
    torch::Tensor noise = torch::randn({12, 6, 1, 1});
    images = images.slice(0, world.rank(), torch::nullopt, world.size());
    noise = noise.slice(0, world.rank(), torch::nullopt, world.size());
    const torch::Tensor ones = torch::ones(images.size(0));

    discriminator->zero_grad();
    const torch::Tensor real = torch::binary_cross_entropy(ddp_discriminator(images), ones);
    real.backward();
    const torch::Tensor drawn = ddp_generator(noise);
    const torch::Tensor fake =
        torch::binary_cross_entropy(ddp_discriminator(drawn.detach()), torch::zeros_like(ones));
    fake.backward();
    telling.step();

    generator->zero_grad();
    const auto no_sync = ddp_discriminator.no_sync();  // Its gradients are not used here.
    const torch::Tensor fooled = torch::binary_cross_entropy(ddp_discriminator(drawn), ones);
    fooled.backward();
    drawing.step();

    const torch::Tensor losses = torch::stack({(real + fake).detach(), fooled.detach()});
    lockstep::all_reduce(losses, world, lockstep::ReduceOp::average);
    if (world.rank() == 0)
      std::cout << "step " << step << ": losses " << losses[0].item<double>() << " and "
                << losses[1].item<double>() << std::endl;
  }
  if (world.rank() == 0) {
    torch::save(generator, "generator.pt");
    torch::save(discriminator, "discriminator.pt");
  }
  lockstep::destroy_process_group(world);
  return 0;
}
