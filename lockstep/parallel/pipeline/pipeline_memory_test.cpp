// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/pipeline/pipeline.h"
#include "lockstep/parallel/pipeline/simulate_order.h"
#include "lockstep/parallel/pipeline/split_backward.h"
#include "tests/ranks.h"
#include "tests/rigs/counting_allocator.h"

namespace lockstep::parallel::pipeline_memory_test {
namespace {

using test::CountingAllocator;

// One layer's results and weight gradients are small relative to a stage's activations.
constexpr int layer_count = 240, microbatches = 4;
constexpr std::int64_t width = 32, rows = 256;

struct LayerImpl : torch::nn::Module {
  LayerImpl() { register_module("linear", linear); }
  at::Tensor forward(const at::Tensor& x) { return linear(x).tanh(); }

  torch::nn::Linear linear{width, width};
};
TORCH_MODULE(Layer);

// One microbatch in a stage, without a pipeline.
PipelineStageCost measured(int layers, bool is_first) {
  std::vector<Layer> stage(static_cast<std::size_t>(layers));
  const at::Tensor input = at::ones({rows, width}).requires_grad_(!is_first);
  std::vector<at::Tensor> leaves;
  if (!is_first) leaves.push_back(input);
  const at::Tensor gradient = at::ones({rows, width});
  const std::int64_t before = CountingAllocator::live();
  at::Tensor output = input;
  for (Layer& layer : stage) output = layer(output);
  const auto activations = static_cast<double>(CountingAllocator::live() - before);
  if (is_first) return {.activation_bytes = activations, .weight_bytes = activations};
  SplitBackward split({output}, {gradient});
  output.reset();
  split.inputs(leaves);
  return {.activation_bytes = activations,
          .weight_bytes = static_cast<double>(CountingAllocator::live() - before)};
}

void expect_simulated(PipelineSchedule schedule, const ProcessGroup& world) {
  LayerList layers;
  for (int i = 0; i < layer_count; ++i)
    layers.add("h." + std::to_string(i), [] { return Layer(); });
  Pipeline pipeline(layers, world, {.schedule = schedule, .microbatches = microbatches});
  const PipelineOrder& order = pipeline.order();
  std::vector<PipelineStageCost> costs;
  for (int stage = 0; stage < order.stages(); ++stage)
    costs.push_back(measured(layer_count / order.stages(), stage == 0));
  const double simulated =
      simulate(order, costs).peak_bytes.at(static_cast<std::size_t>(world.rank()));

  const at::Tensor x = at::ones({microbatches * rows, width});
  const auto step = [&] {
    pipeline.step(x, [](const at::Tensor& y, const Microbatch&) { return y.mean(); });
  };
  for (int i = 0; i < 2; ++i) step();
  const auto peak = static_cast<double>(CountingAllocator::peak_of(step));
  std::printf("%s, rank %d: %.0f bytes at once, %.0f simulated\n",
              std::string(name_of(schedule)).c_str(), world.rank(), peak, simulated);
  EXPECT_LE(peak, 1.05 * simulated) << name_of(schedule);
  EXPECT_GE(peak, 0.95 * simulated) << name_of(schedule);

  const PipelineSlots slots = slots_of(order);
  double slot_count = 0;
  for (const auto& counts : {slots.outputs, slots.gradients})
    for (const int count : counts) slot_count += count;
  const double slot_bytes = slot_count * static_cast<double>(x.nbytes()) / microbatches;
  EXPECT_LE(static_cast<double>(pipeline.message_bytes()), 1.05 * slot_bytes) << name_of(schedule);
}

const test::Ranks measured_ranks("peak memory of a pipeline", [](const test::Rank& /*rank*/) {
  at::set_num_threads(1);
  CountingAllocator counting;
  auto world = init_process_group();
  for (const PipelineSchedule schedule :
       {PipelineSchedule::gpipe, PipelineSchedule::one_f_one_b, PipelineSchedule::interleaved,
        PipelineSchedule::looped_bfs, PipelineSchedule::zero_bubble, PipelineSchedule::zbv})
    expect_simulated(schedule, world);
  destroy_process_group(world);
});

TEST(PipelineMemory, IsThatOfTheSimulation) {
  const auto exits = measured_ranks.run(2);
  EXPECT_TRUE(all_succeeded(exits));
  for (const test::Exit& exit : exits) std::fputs(exit.output.c_str(), stdout);
}

}  // namespace
}  // namespace lockstep::parallel::pipeline_memory_test
