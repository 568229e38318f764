// Our side of bench/model_parallel: steps of a GPT that all ranks hold together. Prints a JSON
// object with the median time of a step.

// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <vector>

#include "examples/models/gpt.h"
#include "lockstep/lockstep.h"

namespace {

struct StepOptions {
  GptOptions gpt = {.vocabulary = 8192, .block_size = 64, .layers = 4, .heads = 8, .width = 128};
  std::int64_t batch = 4;
  int steps = 10;
};

StepOptions read_command_line(int argc, char** argv) {
  StepOptions options;
  CLI::App app("Times steps of a GPT whose layers all ranks hold together");
  app.option_defaults()->always_capture_default();
  app.add_option("--width", options.gpt.width);
  app.add_option("--layers", options.gpt.layers);
  app.add_option("--heads", options.gpt.heads);
  app.add_option("--vocabulary", options.gpt.vocabulary);
  app.add_option("--length", options.gpt.block_size, "tokens of a sequence");
  app.add_option("--batch", options.batch, "sequences");
  app.add_option("--steps", options.steps)->check(CLI::PositiveNumber);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error) == 0 ? 0 : lockstep::exit_usage);
  }
  return options;
}

int time_steps(const StepOptions& options) {
  auto world = lockstep::init_process_group();
  torch::manual_seed(0);
  const auto gpt = std::make_shared<Gpt>(options.gpt);
  lockstep::parallelize_module(*gpt, world, gpt_plan());
  lockstep::AdamW adamw(gpt->parameters(), torch::optim::AdamWOptions(1e-4));
  const auto tokens = torch::randint(options.gpt.vocabulary,
                                     {options.batch, options.gpt.block_size + 1}, torch::kLong);
  std::vector<double> times;
  for (int step = -3; step < options.steps; ++step) {
    world.barrier();
    const auto begin = std::chrono::steady_clock::now();
    adamw.zero_grad();
    const auto logits = gpt->forward(tokens.slice(1, 0, -1));
    const auto target = tokens.slice(1, 1).flatten();
    const auto loss = world.size() == 1
                          ? torch::cross_entropy_loss(logits.flatten(0, 1), target)
                          : lockstep::cross_entropy(logits.flatten(0, 1), target, world);
    loss.backward();
    adamw.step();
    const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - begin;
    if (step >= 0) times.push_back(time.count());
  }
  std::nth_element(times.begin(), times.begin() + options.steps / 2, times.end());
  if (world.rank() == 0) std::printf("{\"ms\": %.4f}\n", times[times.size() / 2]);
  lockstep::destroy_process_group(world);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const StepOptions options = read_command_line(argc, argv);
  return lockstep::record([&] { return time_steps(options); });
}
