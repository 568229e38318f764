// Trains a small network on Fashion-MNIST with, and another without, the outputs of a larger one
// (Hinton et al., 2015).

// SPDX-License-Identifier: Apache-2.0
#include <lockstep/toolkit.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>

#include "examples/classification.h"
#include "examples/command_line.h"
#include "examples/models/cnn.h"

namespace {

struct DistillationOptions {
  std::string data = "fashion-mnist";
  int epochs = 4;
  double temperature = 4;  // Teacher: higher values show more of the wrong classes.
  double weight = 0.9;     // For the teacher's outputs; the classes get the rest.
  std::uint64_t seed = 0;
};

// One layer, with a hundredth of the teacher's products.
struct Student : torch::nn::Module {
  Student() {
    register_module("conv", conv);
    register_module("out", out);
  }

  torch::Tensor forward(torch::Tensor x) {
    x = torch::max_pool2d(torch::relu(conv(x)), 2);
    return out(x.flatten(1));
  }

  torch::nn::Conv2d conv{torch::nn::Conv2dOptions(1, 8, 3).stride(2).padding(1)};
  torch::nn::Linear out{8 * 7 * 7, 10};
};

// The soft part's gradients shrink by temperature^2.
torch::Tensor distillation_loss(const torch::Tensor& student, const torch::Tensor& teacher,
                                const torch::Tensor& target, const DistillationOptions& options) {
  const double t = options.temperature;
  const torch::Tensor soft = torch::kl_div(torch::log_softmax(student / t, 1),
                                           torch::softmax(teacher / t, 1), at::Reduction::Sum) /
                             student.size(0);
  return options.weight * t * t * soft +
         (1 - options.weight) * torch::cross_entropy_loss(student, target);
}

void run(const DistillationOptions& options) {
  auto world = lockstep::init_process_group();
  torch::manual_seed(options.seed);
  const lockstep::IdxDataset images(options.data, /*train=*/true, 10);
  const lockstep::IdxDataset test(options.data, /*train=*/false, 10);
  const Epochs epochs{.count = options.epochs, .seed = options.seed};
  const auto by_classes = [](const torch::Tensor& logits, const torch::Tensor&,
                             const torch::Tensor& target) {
    return torch::cross_entropy_loss(logits, target);
  };
  const auto trained = [&](const auto& net, const auto& loss) {
    lockstep::Adam adam(net->parameters(), 1e-3);
    train(net, adam, images, epochs, world, loss);
    return accuracy(*net, test, world);
  };

  auto teacher = std::make_shared<Cnn>(1, 28, 10);
  const double of_teacher = trained(teacher, by_classes);
  const double alone = trained(std::make_shared<Student>(), by_classes);
  const double distilled = trained(
      std::make_shared<Student>(),
      [&](const torch::Tensor& logits, const torch::Tensor& data, const torch::Tensor& target) {
        const torch::Tensor answers = [&] {
          const torch::NoGradGuard no_grad;
          return teacher->forward(data);
        }();
        return distillation_loss(logits, answers, target, options);
      });
  if (world.rank() == 0)
    std::cout << "accuracy " << of_teacher << " teacher, " << alone << " student alone, "
              << distilled << " student of the teacher\n";
  lockstep::destroy_process_group(world);
}

}  // namespace

int main(int argc, char** argv) {
  DistillationOptions options;
  CLI::App app("Distils a CNN into a smaller one on every rank of the job.");
  app.add_option("--data", options.data, "folder of Fashion-MNIST")->capture_default_str();
  app.add_option("--epochs", options.epochs, "of each network")->check(CLI::PositiveNumber);
  app.add_option("--temperature", options.temperature, "of the answers")
      ->check(CLI::PositiveNumber);
  app.add_option("--weight", options.weight, "of the teacher's answers")
      ->check(CLI::Range(0.0, 1.0))
      ->check(unless_number);
  app.add_option("--seed", options.seed, "of the weights and of the order of the images");
  app.footer("Example:\n  lockstep run -n 2 distillation --epochs 4");
  parse(app, argc, argv);
  return lockstep::record([&] {
    run(options);
    return 0;
  });
}
