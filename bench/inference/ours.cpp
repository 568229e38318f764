// Our side of bench/inference in C++: decodes tokens with a GPT that all ranks share. Prints the
// median time of a token and the share of communication, as JSON.

// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <vector>

#include "examples/models/gpt_decoder.h"
#include "lockstep/lockstep.h"

namespace {

struct DecodeOptions {
  GptOptions gpt = {.vocabulary = 8192, .block_size = 256, .layers = 4, .heads = 8, .width = 256};
  std::int64_t prompt = 16;
  std::int64_t warmup = 16;
  std::int64_t tokens = 128;
};

void add_options(CLI::App& app, DecodeOptions& options) {
  app.option_defaults()->always_capture_default();
  app.add_option("--width", options.gpt.width);
  app.add_option("--layers", options.gpt.layers);
  app.add_option("--heads", options.gpt.heads);
  app.add_option("--vocabulary", options.gpt.vocabulary);
  app.add_option("--tokens", options.tokens)->check(CLI::PositiveNumber);
}

void decode(const DecodeOptions& options, const lockstep::ProcessGroup& world) {
  torch::manual_seed(0);
  const auto gpt = std::make_shared<Gpt>(options.gpt);
  if (world.size() > 1) lockstep::parallelize_module(*gpt, world, gpt_plan());
  gpt->eval();
  GptDecoder decoder(*gpt, /*sequences=*/1);
  torch::Tensor next = decoder.most_probable(
      decoder.append(torch::arange(options.prompt, torch::kLong).unsqueeze(0)));
  const auto one_token = [&] { next = decoder.most_probable(decoder.append(next)); };

  const lockstep::InPhase phase(lockstep::StepPhase::forward);
  for (std::int64_t i = 0; i < options.warmup; ++i) one_token();
  std::vector<double> times;
  const lockstep::StepTimes before = lockstep::step_times();
  for (std::int64_t i = 1; i < options.tokens; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    one_token();
    const std::chrono::duration<double, std::milli> time = std::chrono::steady_clock::now() - begin;
    times.push_back(time.count());
  }
  const lockstep::StepTimes spent = lockstep::step_times() - before;
  const auto communication = spent[lockstep::StepPhase::reduce] + spent[lockstep::StepPhase::wait];
  std::ranges::nth_element(times, times.begin() + times.size() / 2);
  if (world.rank() == 0)
    std::printf(
        "{\"ms\": %.4f, \"communication\": %.4f}\n", times[times.size() / 2],
        static_cast<double>(communication.count()) / static_cast<double>(spent.total().count()));
}

int run(const DecodeOptions& options) {
  auto world = lockstep::init_process_group();
  decode(options, world);
  lockstep::destroy_process_group(world);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  DecodeOptions options;
  CLI::App app("Times tokens of a GPT that all ranks share");
  add_options(app, options);
  CLI11_PARSE(app, argc, argv);
  options.gpt.block_size = options.prompt + options.warmup + options.tokens;
  return lockstep::record([&] { return run(options); });
}
