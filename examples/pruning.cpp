// Trains a CNN on Fashion-MNIST, removes half of its channels, and fine-tunes the remaining model.

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

struct PruningOptions {
  std::string data = "fashion-mnist";
  int epochs = 4;
  int fine_tune = 2;
  double sparsity = 0.5;
  double lr = 1e-3;
  std::uint64_t seed = 0;
};

void run(const PruningOptions& options) {
  auto world = lockstep::init_process_group();
  torch::manual_seed(options.seed);
  auto net = std::make_shared<Cnn>(1, 28, 10);
  lockstep::Adam adam(net->parameters(), options.lr);
  lockstep::IdxDataset images(options.data, /*train=*/true, 10);
  const lockstep::IdxDataset test(options.data, /*train=*/false, 10);
  const auto loss = [](const torch::Tensor& logits, const torch::Tensor&,
                       const torch::Tensor& target) {
    return torch::cross_entropy_loss(logits, target);
  };

  const double before =
      train(net, adam, images, {.count = options.epochs, .seed = options.seed}, world, loss);
  const double dense = accuracy(*net, test, world);

  const torch::Tensor example = images.get(0).data.unsqueeze(0);
  lockstep::ChannelPruner pruner(*net, example, world, {.sparsity = options.sparsity});
  const lockstep::PruningPlan plan = pruner.apply(adam);
  const double pruned = accuracy(*net, test, world);

  const double after =
      train(net, adam, images, {.count = options.fine_tune, .seed = 1}, world, loss);
  const double tuned = accuracy(*net, test, world);
  if (world.rank() == 0)
    std::cout << to_string(plan) << "accuracy " << dense << " dense, " << pruned << " pruned, "
              << tuned << " fine-tuned\nstep " << before * 1e3 << " ms dense, " << after * 1e3
              << " ms pruned, " << before / after << " times as fast\n";
  lockstep::destroy_process_group(world);
}

}  // namespace

int main(int argc, char** argv) {
  PruningOptions options;
  CLI::App app("Trains, prunes and fine-tunes a CNN on every rank of the job.");
  app.add_option("--data", options.data, "folder of Fashion-MNIST")->capture_default_str();
  app.add_option("--epochs", options.epochs, "before pruning")->check(CLI::PositiveNumber);
  app.add_option("--fine-tune", options.fine_tune, "epochs after it")->check(CLI::PositiveNumber);
  app.add_option("--sparsity", options.sparsity, "share of the channels that is removed")
      ->check(CLI::Range(0.0, 0.99))
      ->check(unless_number);
  app.add_option("--lr", options.lr, "learning rate")->check(CLI::PositiveNumber);
  app.add_option("--seed", options.seed, "of the weights and of the order of the images");
  app.footer("Example:\n  lockstep run -n 2 pruning --epochs 4 --fine-tune 2");
  parse(app, argc, argv);
  return lockstep::record([&] {
    run(options);
    return 0;
  });
}
