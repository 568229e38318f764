// Trains the CNN on Fashion-MNIST for bench.py: every step synchronous, by DiLoCo, or alone.

// SPDX-License-Identifier: Apache-2.0
#include <lockstep/comm/process_group.h>
#include <lockstep/data/data_loader.h>
#include <lockstep/data/distributed_sampler.h>
#include <lockstep/optim/optimizers.h>
#include <lockstep/parallel/local_steps/local_steps.h>
#include <lockstep/parallel/replicate/distributed_data_parallel.h>
#include <lockstep/tensor/collectives.h>
#include <lockstep/toolkit/datasets/image_datasets.h>
#include <torch/nn/functional/loss.h>
#include <torch/utils.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include "examples/models/cnn.h"

namespace {

using torch::nn::functional::cross_entropy;

struct Options {
  std::string kind = "synchronous";
  std::int64_t steps = 1000;
  std::int64_t sync_every = 100;
};

void for_each_batch(const lockstep::ProcessGroup& world, std::int64_t steps,
                    const std::function<void(const lockstep::Batch&)>& step) {
  const lockstep::IdxDataset train("fashion-mnist", /*train=*/true);
  lockstep::DistributedSampler sampler(*train.size(), world);
  lockstep::DataLoader loader(train, sampler, world,
                              {.batch_size = 32, .threads = 0, .drop_last = true});
  for (std::int64_t epoch = 0, done = 0; done < steps; ++epoch) {
    sampler.set_epoch(epoch);
    for (auto& batch : loader) {
      step(batch);
      if (++done == steps) break;
    }
  }
}

// Over all test images; in "alone", of the ranks' models.
double test_loss(Cnn& model, const lockstep::ProcessGroup& world) {
  const lockstep::IdxDataset test("fashion-mnist", /*train=*/false);
  lockstep::DistributedSampler sampler(*test.size(), world, {.shuffle = false, .pad = false});
  lockstep::DataLoader loader(test, sampler, world, {.batch_size = 500});
  const torch::NoGradGuard no_grad;
  const torch::Tensor sum = torch::zeros({}, torch::kDouble);
  for (auto& batch : loader)
    sum.add_(cross_entropy(model.forward(batch.data), batch.target) * batch.data.size(0));
  lockstep::all_reduce(sum, world);
  return sum.item<double>() / static_cast<double>(*test.size());
}

void train(const Options& options, const lockstep::ProcessGroup& world) {
  torch::manual_seed(1);
  const auto model = std::make_shared<Cnn>(1, 28, 10);
  lockstep::AdamW adamw(model->parameters(), torch::optim::AdamWOptions(5e-4));
  std::unique_ptr<lockstep::DistributedDataParallel<Cnn>> ddp;
  if (options.kind == "synchronous")
    ddp = std::make_unique<lockstep::DistributedDataParallel<Cnn>>(model, world);
  std::optional<lockstep::DiLoCo> diloco;
  if (options.kind == "diloco")
    diloco.emplace(*model, adamw, world, lockstep::DiLoCoOptions{.sync_every = options.sync_every});
  world.barrier();
  const auto started = std::chrono::steady_clock::now();
  for_each_batch(world, options.steps, [&](const lockstep::Batch& batch) {
    adamw.zero_grad();
    const torch::Tensor outputs = ddp ? (*ddp)(batch.data) : model->forward(batch.data);
    cross_entropy(outputs, batch.target).backward();
    adamw.step();
    if (diloco) diloco->step();
  });
  world.barrier();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - started;
  const double loss = test_loss(*model, world);
  const auto samples = static_cast<double>(32 * options.steps * world.size());
  if (world.rank() == 0)
    std::cout << "samples_per_second " << samples / seconds.count() << "\nloss " << loss
              << std::endl;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Prints the samples/s of all ranks and the final loss of the test images.");
  app.add_option("--kind", options.kind, "How ranks synchronise")
      ->check(CLI::IsMember({"synchronous", "diloco", "alone"}))
      ->capture_default_str();
  app.add_option("--steps", options.steps, "Steps of each rank, on 32 images")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--sync-every", options.sync_every, "Steps between synchronisations of DiLoCo")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    torch::set_num_threads(1);
    auto world = lockstep::init_process_group();
    train(options, world);
    lockstep::destroy_process_group(world);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << std::endl;
    return 1;
  }
}
