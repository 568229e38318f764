// Alternates steps of a model and of the same model without half of its channels, on every rank.
// Rank 0 prints a line of JSON for each round: milliseconds of a step.
//   lockstep run -n 2 bench_prune --model resnet18 --batch 16 --steps 4 --rounds 5

// SPDX-License-Identifier: Apache-2.0
#include <lockstep/toolkit.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <functional>
#include <iostream>
#include <memory>
#include <string>

#include "examples/models/cnn.h"
#include "examples/models/resnet.h"

namespace {

struct BenchOptions {
  std::string model = "cnn";
  std::int64_t batch = 64;
  int steps = 10;
  int rounds = 5;
};

template <class Net>
class Training {
 public:
  Training(std::shared_ptr<Net> net, const torch::Tensor& images, bool prune,
           const lockstep::ProcessGroup& world)
      : net_(std::move(net)), images_(images) {
    if (prune) plan_ = lockstep::ChannelPruner(*net_, images, world, {.sparsity = 0.5}).apply();
    ddp_ = std::make_unique<lockstep::DistributedDataParallel<Net>>(net_, world);
    adam_ = std::make_unique<lockstep::Adam>(net_->parameters(), 1e-3);
  }

  double steps(int count) {
    const auto started = std::chrono::steady_clock::now();
    for (int i = 0; i < count; ++i) {
      adam_->zero_grad();
      torch::cross_entropy_loss((*ddp_)(images_), target_).backward();
      adam_->step();
    }
    const std::chrono::duration<double, std::milli> passed =
        std::chrono::steady_clock::now() - started;
    return passed.count() / count;
  }

  const lockstep::PruningPlan& plan() const { return plan_; }

 private:
  std::shared_ptr<Net> net_;
  torch::Tensor images_;
  torch::Tensor target_ = torch::randint(10, {images_.size(0)});
  lockstep::PruningPlan plan_;
  std::unique_ptr<lockstep::DistributedDataParallel<Net>> ddp_;
  std::unique_ptr<lockstep::Adam> adam_;
};

template <class Net>
void measure(const std::function<std::shared_ptr<Net>()>& make, const torch::Tensor& images,
             const BenchOptions& options, const lockstep::ProcessGroup& world) {
  Training<Net> dense(make(), images, false, world);
  Training<Net> pruned(make(), images, true, world);
  const lockstep::ModelSize before = pruned.plan().before, after = pruned.plan().after;
  if (world.rank() == 0)
    std::cout << "{\"parameters\": [" << before.parameters << ", " << after.parameters
              << "], \"macs\": [" << before.macs << ", " << after.macs << "]}\n";
  dense.steps(2);
  pruned.steps(2);
  for (int round = 0; round < options.rounds; ++round) {
    const double slow = dense.steps(options.steps);
    const double fast = pruned.steps(options.steps);
    if (world.rank() == 0)
      std::cout << "{\"dense\": " << slow << ", \"pruned\": " << fast << "}\n" << std::flush;
  }
}

void run(const BenchOptions& options) {
  auto world = lockstep::init_process_group();
  torch::manual_seed(world.rank());
  if (options.model == "cnn")
    measure<Cnn>([] { return std::make_shared<Cnn>(3, 32, 10); },
                 torch::randn({options.batch, 3, 32, 32}), options, world);
  else
    measure<ResNetImpl>([] { return resnet18(10).ptr(); }, torch::randn({options.batch, 3, 64, 64}),
                        options, world);
  lockstep::destroy_process_group(world);
}

}  // namespace

int main(int argc, char** argv) {
  BenchOptions options;
  CLI::App app("Measures steps before and after pruning.");
  app.add_option("--model", options.model)->check(CLI::IsMember({"cnn", "resnet18"}));
  app.add_option("--batch", options.batch)->check(CLI::PositiveNumber);
  app.add_option("--steps", options.steps)->check(CLI::PositiveNumber);
  app.add_option("--rounds", options.rounds)->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  return lockstep::record([&] {
    run(options);
    return 0;
  });
}
