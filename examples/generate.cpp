// Generates text with the GPT of gpt.cpp.

// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <chrono>
#include <iomanip>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "examples/command_line.h"
#include "examples/models/gpt_decoder.h"
#include "lockstep/toolkit.h"

namespace {

struct GenerateOptions {
  GptOptions gpt = {.vocabulary = 256, .block_size = 64, .layers = 2, .heads = 4, .width = 128};
  std::string weights = {};
  std::string prompt = "You may";
  std::int64_t tokens = 50;
  std::uint64_t seed = 0;
};

GenerateOptions read_command_line(int argc, char** argv) {
  GenerateOptions options;
  const CLI::Range positive(std::int64_t{1}, std::int64_t{1'000'000});
  CLI::App app("Generates text with a GPT whose layers all ranks share");
  app.option_defaults()->always_capture_default();
  app.add_option("--weights", options.weights,
                 "checkpoint of gpt, or folder of weights; default: random");
  app.add_option("--prompt", options.prompt, "first bytes of the text");
  app.add_option("--tokens", options.tokens, "bytes to generate")->check(positive);
  app.add_option("--length", options.gpt.block_size, "of gpt")->check(positive);
  app.add_option("--width", options.gpt.width, "of gpt")->check(positive);
  app.add_option("--layers", options.gpt.layers, "of gpt")->check(positive);
  app.add_option("--heads", options.gpt.heads, "of gpt")->check(positive);
  app.add_option("--seed", options.seed, "of random weights");
  app.footer(
      "Examples:\n"
      "  lockstep run -n 2 generate\n"
      "  lockstep run -n 2 gpt --tp 2 --checkpoint runs/gpt\n"
      "  lockstep run -n 2 generate --weights runs/gpt --prompt \"This program\"");
  parse(app, argc, argv);
  return options;
}

torch::Tensor bytes_of(const std::string& text) {
  const std::vector<std::uint8_t> bytes(text.begin(), text.end());
  return torch::tensor(bytes, torch::kByte).to(torch::kLong).unsqueeze(0);
}

char printable(std::int64_t byte) {
  return byte == '\n' || (byte >= ' ' && byte <= '~') ? static_cast<char>(byte) : '.';
}

void generate(const GenerateOptions& options, const lockstep::ProcessGroup& world) {
  torch::manual_seed(options.seed);
  const auto gpt = std::make_shared<Gpt>(options.gpt);
  lockstep::parallelize_module(*gpt, world, gpt_plan());
  if (!options.weights.empty()) lockstep::load_weights(*gpt, options.weights, world);
  gpt->eval();
  GptDecoder decoder(*gpt, /*sequences=*/1);
  std::string text = options.prompt;
  torch::Tensor next = decoder.most_probable(decoder.append(bytes_of(options.prompt)));
  text += printable(next.item<std::int64_t>());

  const lockstep::InPhase phase(lockstep::StepPhase::forward);
  const lockstep::StepTimes before = lockstep::step_times();
  for (std::int64_t i = 1; i < options.tokens; ++i) {
    next = decoder.most_probable(decoder.append(next));
    text += printable(next.item<std::int64_t>());
  }
  const lockstep::StepTimes times = lockstep::step_times() - before;
  if (world.rank() != 0) return;
  std::cout << text << std::endl;
  if (options.tokens > 1)
    std::cerr << std::fixed << std::setprecision(3)
              << std::chrono::duration<double, std::milli>(times.total()).count() /
                     static_cast<double>(options.tokens - 1)
              << " ms a token: " << lockstep::describe(times) << std::endl;
}

int run(const GenerateOptions& options) {
  auto world = lockstep::init_process_group();
  lockstep::require(
      options.gpt.width % options.gpt.heads == 0 && options.gpt.heads % world.size() == 0,
      "--heads must divide --width, and the ranks --heads");
  lockstep::require(!options.prompt.empty(), "--prompt is empty");
  const std::int64_t length = static_cast<std::int64_t>(options.prompt.size()) + options.tokens - 1;
  lockstep::require(length <= options.gpt.block_size, [&] {
    return "prompt and tokens need " + std::to_string(length) + " positions, and --length is " +
           std::to_string(options.gpt.block_size);
  });
  generate(options, world);
  lockstep::destroy_process_group(world);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const GenerateOptions options = read_command_line(argc, argv);
  return lockstep::record([&] { return run(options); });
}
