// Compiled Lockstep's side of bench/compiled: training steps of a package on random data. bench_ddp
// does the same with the eager model.

// SPDX-License-Identifier: Apache-2.0
#include <lockstep/comm/process_group.h>
#include <lockstep/optim/optimizers.h>
#include <lockstep/parallel/replicate/distributed_data_parallel.h>
#include <lockstep/toolkit/compiled/compiled_module.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdint>
#include <exception>
#include <iostream>
#include <string>

#include "bench/ddp/options.h"
#include "bench/ddp/workload.h"

namespace {

using Clock = std::chrono::steady_clock;

struct Times {
  Clock::duration forward{};   // With the loss and all gradients.
  Clock::duration backward{};  // Until the ranks' means.
  Clock::duration optimizer{};
};

void run(const Options& options, const std::string& package, const std::string& weights) {
  torch::set_num_threads(1);
  auto world = lockstep::init_process_group();
  const Workload data = make_workload(options, {});  // Only inputs and targets are used.
  const auto model = lockstep::CompiledModule::load(package, weights);
  lockstep::DistributedDataParallel ddp(model, world);
  lockstep::Adam adam(model->parameters(), torch::optim::AdamOptions(1e-4));
  const auto step = [&](Times& times) {
    const auto begun = Clock::now();
    const torch::Tensor loss = ddp(data.inputs, data.targets);
    const auto forwarded = Clock::now();
    loss.backward();
    const auto differentiated = Clock::now();
    adam.step();
    adam.zero_grad();
    times.forward += forwarded - begun;
    times.backward += differentiated - forwarded;
    times.optimizer += Clock::now() - differentiated;
  };
  Times times;
  for (int i = 0; i < options.warmup; ++i) step(times);
  world.barrier();
  times = {};
  const auto started = Clock::now();
  for (int i = 0; i < options.steps; ++i) step(times);
  world.barrier();
  const std::chrono::duration<double> seconds = Clock::now() - started;
  if (world.rank() == 0) {
    const auto milliseconds = [&](Clock::duration time) {
      return std::chrono::duration<double, std::milli>(time).count() / options.steps;
    };
    std::cout << "samples_per_second "
              << static_cast<double>(options.batch * options.steps * world.size()) / seconds.count()
              << "\nstep_ms forward " << milliseconds(times.forward) << " backward "
              << milliseconds(times.backward) << " optimizer " << milliseconds(times.optimizer)
              << std::endl;
  }
  lockstep::destroy_process_group(world);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  std::string package, weights;
  CLI::App app("Prints the samples/s of all ranks, and where a step's time went on rank 0, in ms.");
  app.add_option("package", package)->required();
  app.add_option("weights", weights)->required();
  app.add_option("--model", options.model, "What is trained");
  app.add_option("--batch", options.batch, "Samples in a step, on each rank");
  app.add_option("--warmup", options.warmup, "Steps before the clock starts");
  app.add_option("--steps", options.steps, "Steps that are timed");
  CLI11_PARSE(app, argc, argv);
  try {
    run(options, package, weights);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "error: " << error.what() << std::endl;
    return 1;
  }
}
