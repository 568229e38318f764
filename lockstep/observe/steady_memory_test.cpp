// Tests that training a model that is spread over several ranks leaks no memory.

// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>

#include "lockstep/comm/process_group.h"
#include "lockstep/nn/cross_entropy.h"
#include "lockstep/nn/layers.h"
#include "lockstep/observe/process_memory.h"
#include "lockstep/optim/clip_grad_norm.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/pipeline/pipeline.h"
#include "lockstep/parallel/tensor_parallel/parallelize_module.h"
#include "lockstep/tensor/activation_checkpoint.h"
#include "lockstep/tensor/differentiable.h"
#include "tests/ranks.h"

namespace lockstep::observe::steady_memory_test {
namespace {

// Has every kind of layer, and activations that are cut along the sequence.
struct Net : torch::nn::Module {
  Net() {
    register_module("wte", wte);
    register_module("norm", norm);
    register_module("in", in);
    register_module("out", out);
    register_module("dropout", dropout);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return x + dropout(out(torch::gelu(in(norm(x)))));
  }

  nn::Embedding wte{51, 64};  // Wide, so that sums are in the registered pool.
  nn::LayerNorm norm{torch::nn::LayerNormOptions({64})};
  nn::Linear in{64, 128}, out{128, 64};
  nn::Dropout dropout{0.1};
};

struct Footprint {
  std::size_t resident = 0;  // Excludes files, whose pages other processes may load or share.
  std::size_t shared = 0;    // All that is mapped MAP_SHARED. Staging buffers grow page by page.
  std::ptrdiff_t descriptors = 0;
  std::ptrdiff_t threads = 0;
};

std::size_t resident_bytes() {
  std::ifstream status("/proc/self/status");
  std::size_t bytes = 0;
  for (std::string line; std::getline(status, line);)
    if (constexpr std::string_view name = "RssAnon:"; line.starts_with(name))
      bytes += std::stoull(line.substr(name.size())) << 10;
  return bytes;
}

std::ptrdiff_t entries_of(const char* folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

Footprint footprint() {
  Footprint now{.resident = resident_bytes(),
                .descriptors = entries_of("/proc/self/fd"),
                .threads = entries_of("/proc/self/task")};
  for (const Mapping& mapping : mappings_of_this_process())
    if (mapping.is_shared) now.shared += mapping.end - mapping.begin;
  return now;
}

// After 200 steps, and 800 later.
void expect_nothing_left(const Footprint& before, const Footprint& after) {
  std::printf("%zu bytes are resident after 1,000 steps, %zu after 200\n", after.resident,
              before.resident);
  // A tensor leaked in each step would have more than 300 bytes.
  EXPECT_LT(after.resident, before.resident + 800 * 300);
  EXPECT_EQ(after.shared, before.shared);
  EXPECT_EQ(after.descriptors, before.descriptors);
  EXPECT_EQ(after.threads, before.threads);
}

// --- A model that is cut -------------------------------------------------------------------------

const test::Ranks training("a thousand steps", [](const test::Rank& /*rank*/) {
  torch::set_num_threads(1);
  auto world = init_process_group();
  torch::manual_seed(1);
  const auto net = std::make_shared<Net>();
  parallelize_module(*net, world,
                     {{"wte", RowwiseParallel({.output = sharded(1)})},
                      {"norm", SequenceParallel()},
                      {"in", ColwiseParallel({.input = sharded(1)})},
                      {"out", RowwiseParallel({.output = sharded(1)})},
                      {"dropout", SequenceParallel()}});
  AdamW adamw(net->parameters(), torch::optim::AdamWOptions(1e-3));
  const torch::Tensor tokens = torch::arange(4 * 9).remainder(51).view({4, 9});
  Footprint before;
  for (int step = 1; step <= 1000; ++step) {
    adamw.zero_grad();
    const torch::Tensor x = activation_checkpoint(*net, net->wte(tokens.slice(1, 0, 8)));
    const torch::Tensor logits = net->wte->as_linear(gather_from_parallel_region(x, world, 1));
    cross_entropy(logits.flatten(0, 1), tokens.slice(1, 1).flatten(), world).backward();
    clip_grad_norm_(*net, 1.0);
    adamw.step();
    if (step == 200) before = footprint();
  }
  expect_nothing_left(before, footprint());
  destroy_process_group(world);
});

TEST(SteadyMemory, AThousandStepsOfAModelThatIsCutLeaveNothing) {
  const auto exits = training.run(2);
  EXPECT_TRUE(all_succeeded(exits));
  std::fputs(exits[0].output.c_str(), stdout);
}

// --- A pipeline ----------------------------------------------------------------------------------

struct StageImpl : torch::nn::Module {
  StageImpl() { register_module("linear", linear); }
  torch::Tensor forward(const torch::Tensor& x) { return x + torch::gelu(linear(x)); }

  torch::nn::Linear linear{64, 64};
};
TORCH_MODULE(Stage);

// Each step has other rows than the previous one. An evaluation with other rows follows.
const test::Ranks pipelined("a thousand steps of a pipeline", [](const test::Rank& /*rank*/) {
  torch::set_num_threads(1);
  auto world = init_process_group();
  torch::manual_seed(1);
  LayerList layers;
  layers.add("embed", [] { return torch::nn::Embedding(51, 64); });
  for (int i = 0; i < 4; ++i) layers.add("h." + std::to_string(i), [] { return Stage(); });
  layers.add("head",
             [] { return torch::nn::Linear(torch::nn::LinearOptions(64, 51).bias(false)); });
  layers.tie("head.weight", "embed.weight");
  Pipeline pipeline(layers, world, {.schedule = PipelineSchedule::zbv});
  AdamW adamw(pipeline.parameters(), torch::optim::AdamWOptions(1e-3));
  const auto loss_of = [](const torch::Tensor& logits, const Microbatch&) {
    return logits.square().mean();
  };
  const auto tokens = [](int step) {
    return torch::arange(4 * (4 + step % 7)).remainder(51).view({4 + step % 7, 4});
  };
  Footprint before;
  for (int step = 1; step <= 1000; ++step) {
    adamw.zero_grad();
    pipeline.step(tokens(step), loss_of);
    pipeline.clip_grad_norm_(1.0);
    adamw.step();
    pipeline.evaluate(tokens(3 * step), loss_of);
    if (step == 200) before = footprint();
  }
  expect_nothing_left(before, footprint());
  destroy_process_group(world);
});

TEST(SteadyMemory, AThousandStepsOfAPipelineLeaveNothing) {
  const auto exits = pipelined.run(2);
  EXPECT_TRUE(all_succeeded(exits));
  std::fputs(exits[0].output.c_str(), stdout);
}

}  // namespace
}  // namespace lockstep::observe::steady_memory_test
