// Classifies small images. A DataLoader with two workers reads them in a new order each epoch.

// SPDX-License-Identifier: Apache-2.0
#include <lockstep/lockstep.h>
#include <torch/torch.h>

#include <iostream>
#include <tuple>
#include <utility>

// Images of 8 x 8 pixels with a bright row or column, in sixteen classes.
class Stripes : public torch::data::datasets::Dataset<Stripes> {
 public:
  explicit Stripes(std::size_t size) : size_(size) {}

  torch::data::Example<> get(std::size_t index) override {
    const auto label = static_cast<std::int64_t>(index % 16);
    const double phase = static_cast<double>(index);
    torch::Tensor image = torch::sin(torch::arange(64) * (1 + phase)).view({1, 8, 8});
    image.select(label < 8 ? 1 : 2, label % 8).add_(2);
    return {image, torch::tensor(label)};
  }

  torch::optional<std::size_t> size() const override { return size_; }

 private:
  const std::size_t size_;
};

struct Net : torch::nn::Module {
  torch::nn::Conv2d conv{register_module("conv", torch::nn::Conv2d(1, 8, 3))};
  torch::nn::Linear out{register_module("out", torch::nn::Linear(8 * 3 * 3, 16))};

  torch::Tensor forward(torch::Tensor x) {
    x = torch::max_pool2d(torch::relu(conv(x)), 2);
    return torch::log_softmax(out(x.flatten(1)), 1);
  }
};

int main() {
  auto world = lockstep::init_process_group();
  torch::manual_seed(1);
  auto train = Stripes(480).map(torch::data::transforms::Stack<>());
  auto test = Stripes(101).map(torch::data::transforms::Stack<>());
  lockstep::DistributedSampler sampler(480, world);
  lockstep::DistributedSampler test_sampler(101, world, {.shuffle = false, .pad = false});
  auto loader = torch::data::make_data_loader(
      std::move(train), sampler, torch::data::DataLoaderOptions(24 / world.size()).workers(2));
  auto test_loader = torch::data::make_data_loader(std::move(test), test_sampler, 32);

  auto model = std::make_shared<Net>();
  lockstep::DistributedDataParallel ddp(model, world);
  torch::optim::Adam adam(model->parameters(), 5e-3);
  for (int epoch = 0; epoch < 3; ++epoch) {
    sampler.set_epoch(epoch);
    torch::Tensor total = torch::zeros({});
    for (auto& batch : *loader) {
      adam.zero_grad();
      const torch::Tensor loss = torch::nll_loss(ddp(batch.data), batch.target);
      loss.backward();
      adam.step();
      total += loss.detach();
    }
    lockstep::all_reduce(total, world, lockstep::ReduceOp::average);
    if (world.rank() == 0)
      std::cout << "epoch " << epoch << ": loss " << total.item<double>() / 20 << std::endl;
  }

  const torch::NoGradGuard no_grad;
  torch::Tensor correct = torch::zeros({}, torch::kLong);
  for (auto& batch : *test_loader)
    correct += (model->forward(batch.data).argmax(1) == batch.target).sum();
  lockstep::all_reduce(correct, world);
  if (world.rank() == 0) {
    std::cout << correct.item<int64_t>() << " of 101 correct" << std::endl;
    torch::save(model, "digits.pt");
  }
  lockstep::destroy_process_group(world);
  return 0;
}
