// Our side of bench/model_parallel: steps of a GPT that all ranks hold together, or each rank
// alone. Prints a JSON object with the median time of a step.

// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "examples/models/gpt.h"
#include "lockstep/lockstep.h"

namespace {

struct StepOptions {
  GptOptions gpt = {.vocabulary = 8192, .block_size = 64, .layers = 4, .heads = 8, .width = 128};
  std::int64_t batch = 4;
  int steps = 10;
  std::string parallel = "tensor";
};

StepOptions read_command_line(int argc, char** argv) {
  StepOptions options;
  CLI::App app("Times steps of a GPT that all ranks hold together");
  app.option_defaults()->always_capture_default();
  app.add_option("--width", options.gpt.width);
  app.add_option("--layers", options.gpt.layers);
  app.add_option("--heads", options.gpt.heads);
  app.add_option("--vocabulary", options.gpt.vocabulary);
  app.add_option("--length", options.gpt.block_size, "tokens of a sequence");
  app.add_option("--batch", options.batch, "sequences of a rank; of all with tensor");
  app.add_option("--parallel", options.parallel)
      ->check(CLI::IsMember({"tensor", "fully-sharded", "none"}));
  app.add_option("--steps", options.steps)->check(CLI::PositiveNumber);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : lockstep::exit_usage);
  }
  return options;
}

// Times steps, each of which `backward` computes gradients for, and prints their median.
template <class Backward>
void time_steps(const StepOptions& options, const lockstep::ProcessGroup& world,
                torch::optim::Optimizer& optimizer, Backward backward) {
  std::vector<double> times;
  for (int step = -3; step < options.steps; ++step) {
    world.barrier();
    const auto begin = std::chrono::steady_clock::now();
    optimizer.zero_grad();
    backward();
    optimizer.step();
    const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - begin;
    if (step >= 0) times.push_back(time.count());
  }
  std::nth_element(times.begin(), times.begin() + options.steps / 2, times.end());
  if (world.rank() == 0) std::printf("{\"ms\": %.4f}\n", times[times.size() / 2]);
}

int train(const StepOptions& options) {
  auto world = lockstep::init_process_group();
  torch::manual_seed(0);
  const auto gpt = std::make_shared<Gpt>(options.gpt);
  const auto tokens = torch::randint(options.gpt.vocabulary,
                                     {options.batch, options.gpt.block_size + 1}, torch::kLong);
  const auto inputs = tokens.slice(1, 0, -1), targets = tokens.slice(1, 1).flatten();
  const auto loss_of = [&](const torch::Tensor& logits) {
    return torch::cross_entropy_loss(logits.flatten(0, 1), targets);
  };
  const torch::optim::AdamWOptions adamw_options(1e-4);
  if (options.parallel == "fully-sharded") {
    lockstep::FullyShardedDataParallel fsdp(gpt, world, {.units = {"transformer.h.*"}});
    lockstep::FullyShardedOptimizer<lockstep::AdamW> adamw(fsdp, gpt->parameters(), adamw_options);
    time_steps(options, world, adamw, [&] { loss_of(fsdp(inputs)).backward(); });
  } else {
    const bool is_cut = options.parallel == "tensor" && world.size() > 1;
    if (is_cut) lockstep::parallelize_module(*gpt, world, gpt_plan());
    lockstep::AdamW adamw(gpt->parameters(), adamw_options);
    time_steps(options, world, adamw, [&] {
      const auto logits = gpt->forward(inputs);
      const auto loss =
          is_cut ? lockstep::cross_entropy(logits.flatten(0, 1), targets, world) : loss_of(logits);
      loss.backward();
    });
  }
  lockstep::destroy_process_group(world);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const StepOptions options = read_command_line(argc, argv);
  return lockstep::record([&] { return train(options); });
}
