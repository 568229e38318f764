// Trains a small CNN on Fashion-MNIST with a batch of --replicas times 256 images. --method selects
// the compensation for fewer, larger steps.

// SPDX-License-Identifier: Apache-2.0
#include <lockstep/toolkit.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>

#include "examples/command_line.h"

namespace {

namespace nn = torch::nn;
namespace F = torch::nn::functional;

constexpr std::int64_t replica_batch = 256;
constexpr int classes = 10;

struct LargeBatchOptions {
  std::string data = "fashion-mnist";
  int replicas = 16;
  std::string method = "lamb";
  int epochs = 8;
  std::uint64_t seed = 0;
  std::string json = {};
};

// Without BatchNorm, whose statistics depend on a replica's batch.
struct Net : nn::Module {
  Net() {
    register_module("conv1", conv1);
    register_module("norm1", norm1);
    register_module("conv2", conv2);
    register_module("norm2", norm2);
    register_module("linear1", linear1);
    register_module("linear2", linear2);
  }

  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(norm1(conv1(x)));
    x = torch::relu(norm2(conv2(x)));
    return linear2(torch::relu(linear1(x.flatten(1))));
  }

  nn::Conv2d conv1{nn::Conv2dOptions(1, 8, 5).stride(2).padding(2).bias(false)};
  nn::GroupNorm norm1{nn::GroupNormOptions(4, 8)};
  nn::Conv2d conv2{nn::Conv2dOptions(8, 16, 3).stride(2).padding(1).bias(false)};
  nn::GroupNorm norm2{nn::GroupNormOptions(4, 16)};
  nn::Linear linear1{16 * 7 * 7, 64};
  nn::Linear linear2{64, classes};
};

using Optimizer = std::unique_ptr<torch::optim::Optimizer>;

Optimizer adam(const Net& net) {
  return std::make_unique<lockstep::Adam>(net.parameters(), torch::optim::AdamOptions(1e-4));
}

Optimizer lars(const Net& net) {
  const lockstep::LARSOptions options = lockstep::LARSOptions(0.125).weight_decay(1e-4);
  return std::make_unique<lockstep::LARS>(lockstep::decayed_and_not(net, options), options);
}

Optimizer lamb(const Net& net) {
  const lockstep::LAMBOptions options(0.01);
  return std::make_unique<lockstep::LAMB>(lockstep::decayed_and_not(net, options), options);
}

// `rule` scales the learning rate from one replica. The rate rises in the first `warmup` of all
// steps, then falls along a cosine.
struct Method {
  std::function<Optimizer(const Net& net)> optimizer;
  lockstep::RateRule rule;
  double warmup;
};

const std::map<std::string, Method>& methods() {
  static const std::map<std::string, Method> all = {
      {"unchanged", {adam, lockstep::RateRule::none, 0}},
      {"linear", {adam, lockstep::RateRule::linear, 0.02}},
      {"sqrt", {adam, lockstep::RateRule::sqrt, 0.02}},
      {"lars", {lars, lockstep::RateRule::linear, 0.1}},
      {"lamb", {lamb, lockstep::RateRule::sqrt, 0.1}},
  };
  return all;
}

Report train(const std::shared_ptr<Net>& net, const LargeBatchOptions& options,
             const lockstep::ProcessGroup& world) {
  const Method& method = methods().at(options.method);
  const Optimizer optimizer = method.optimizer(*net);
  lockstep::DeterministicDataParallel ddp(net, world,
                                          {.microbatches = options.replicas, .seed = options.seed});

  const lockstep::IdxDataset data(options.data, /*train=*/true, classes);
  const std::int64_t global_batch = options.replicas * replica_batch;
  const auto images = static_cast<std::int64_t>(*data.size());
  if (global_batch > images)
    throw std::runtime_error("--replicas need " + std::to_string(global_batch) +
                             " images, and there are " + std::to_string(images));
  lockstep::DistributedSampler sampler(*data.size(), world,
                                       {.seed = options.seed, .drop_last = true});
  const auto rank_batch = static_cast<std::size_t>(global_batch / world.size());
  lockstep::DataLoader loader(data, sampler, world, {.batch_size = rank_batch, .drop_last = true});

  // All numbers of replicas process equally many images.
  const std::int64_t steps = options.epochs * images / global_batch;
  const auto warmup_steps =
      std::max<std::int64_t>(1, std::llround(method.warmup * static_cast<double>(steps)));
  lockstep::ScaledLearningRate scaled(*optimizer, {.base_batch = replica_batch,
                                                   .global_batch = global_batch,
                                                   .rule = method.rule,
                                                   .warmup_steps = warmup_steps});
  lockstep::CosineAnnealingLR cosine(*optimizer,
                                     {.T_max = std::max<std::int64_t>(1, steps - warmup_steps)});
  lockstep::SequentialLR schedule(*optimizer, {&scaled, &cosine}, {warmup_steps});

  lockstep::Progress progress(steps, {.enabled = world.rank() == 0, .label = options.method});
  const auto started = std::chrono::steady_clock::now();
  double loss = 0;
  std::int64_t step = 0;
  for (std::int64_t epoch = 0; step < steps; ++epoch) {
    sampler.set_epoch(epoch);
    for (auto& batch : loader) {
      optimizer->zero_grad();
      loss = ddp.train_microbatches(step, [&](const lockstep::GlobalMicrobatch& part) {
        return F::cross_entropy(ddp(part.of(batch.data)), part.of(batch.target));
      });
      optimizer->step();
      schedule.step();
      loader.consume(batch);
      progress.step(global_batch, loss);
      if (++step == steps) break;
    }
  }
  const std::chrono::duration<double> time = std::chrono::steady_clock::now() - started;
  return {.samples_per_second = static_cast<double>(steps * global_batch) / time.count(),
          .seconds = time.count(),
          .loss = loss,
          .world_size = world.size(),
          .steps = steps};
}

double accuracy(Net& net, const LargeBatchOptions& options, const lockstep::ProcessGroup& world) {
  const lockstep::IdxDataset test(options.data, /*train=*/false, classes);
  lockstep::DistributedSampler sampler(*test.size(), world, {.shuffle = false, .pad = false});
  lockstep::DataLoader loader(test, sampler, world, {.batch_size = 500});
  const torch::NoGradGuard no_grad;
  net.eval();
  torch::Tensor right = torch::zeros({1}, torch::kLong);
  for (auto& batch : loader) right += net.forward(batch.data).argmax(1).eq(batch.target).sum();
  lockstep::all_reduce(right, world);
  return right.item<double>() / static_cast<double>(*test.size());
}

int run(const LargeBatchOptions& options) {
  torch::set_num_threads(1);  // For equal weights on any number of ranks.
  auto world = lockstep::init_process_group();
  if (options.replicas % world.size() != 0)
    throw std::runtime_error("the number of ranks must divide --replicas, " +
                             std::to_string(options.replicas));
  torch::manual_seed(options.seed);
  const auto net = std::make_shared<Net>();
  Report report = train(net, options, world);
  report.accuracy = accuracy(*net, options, world);
  if (world.rank() == 0) {
    std::cout << "test accuracy " << report.accuracy << ", loss " << report.loss << ", sha256 "
              << lockstep::sha256(*net) << std::endl;
    if (!options.json.empty()) write_json(report, options.json);
  }
  lockstep::destroy_process_group(world);
  return 0;
}

LargeBatchOptions read_options(int argc, char** argv) {
  LargeBatchOptions options;
  CLI::App app(
      "Trains a small CNN on Fashion-MNIST with the batch of several replicas of 256 images, and\n"
      "tests it. Any number of ranks that divides --replicas computes the same weights.");
  app.footer(
      "Examples:\n"
      "  lockstep run -n 2 large_batch --replicas 16 --method unchanged\n"
      "  lockstep run -n 4 large_batch --replicas 16 --method lamb");
  app.option_defaults()->always_capture_default();
  app.add_option("--data", options.data, "Folder of the dataset, or its name");
  app.add_option("--replicas", options.replicas, "Their batches of 256 make one step's batch")
      ->check(CLI::Range(1, 1024));
  app.add_option("--method", options.method,
                 "unchanged: Adam, always with the rate of one replica; linear, sqrt: the rate "
                 "grows with the batch or its square root; lars, lamb: those optimizers")
      ->check(CLI::IsMember(methods()));
  app.add_option("--epochs", options.epochs, "Times the number of images, which all steps share")
      ->check(CLI::Range(1, 1'000'000));
  app.add_option("--seed", options.seed, "Seed of the first weights and of the order of samples");
  app.add_option("--json", options.json, "Write accuracy, speed and loss to this file")
      ->check(CLI::Validator(unless_writable, "FILE"));
  parse(app, argc, argv);
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const LargeBatchOptions options = read_options(argc, argv);
  return lockstep::record([&] { return run(options); });
}
