// One side of the comparison in bench.py: training steps of the CNN under Lockstep, on random data
// that is there already. train_pytorch.py is the other side, step for step.

// SPDX-License-Identifier: Apache-2.0
#include <lockstep/lockstep.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <iostream>

#include "examples/models/cnn.h"

namespace {

struct Options {
  std::int64_t batch = 32;
  int warmup = 10;
  int steps = 50;
};

double seconds_of(const Options& options, const lockstep::ProcessGroup& world) {
  torch::manual_seed(0);
  auto net = std::make_shared<Cnn>(/*channels=*/3, /*size=*/32, /*classes=*/10);
  lockstep::DistributedDataParallel ddp(net, world);
  lockstep::Adam adam(net->parameters(), 1e-4);
  const auto images = torch::randn({options.batch, 3, 32, 32});
  const auto targets = torch::randint(10, {options.batch}, torch::kLong);

  auto started = std::chrono::steady_clock::now();
  for (int step = 0; step < options.warmup + options.steps; ++step) {
    if (step == options.warmup) {
      world.barrier();
      started = std::chrono::steady_clock::now();
    }
    adam.zero_grad();
    torch::nn::functional::cross_entropy(ddp(images), targets).backward();
    adam.step();
  }
  world.barrier();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Prints the samples/s of all ranks.");
  app.add_option("--batch", options.batch, "Samples in a step, on each rank");
  app.add_option("--warmup", options.warmup, "Steps before the clock starts");
  app.add_option("--steps", options.steps, "Steps that are timed");
  CLI11_PARSE(app, argc, argv);

  torch::set_num_threads(1);
  auto world = lockstep::init_process_group();
  const double seconds = seconds_of(options, world);
  const auto samples = static_cast<double>(options.batch * options.steps * world.size());
  if (world.rank() == 0) std::cout << "samples_per_second " << samples / seconds << std::endl;
  lockstep::destroy_process_group(world);
}
