// Our side of bench/model_parallel: prints the median time of a step of a GPT, as JSON.

// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <functional>
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
  std::string schedule = "1f1b";
  std::vector<int> cut = {};
  bool simulate = false;
  bool memory = false;
};

void add_options(CLI::App& app, StepOptions& options) {
  app.option_defaults()->always_capture_default();
  app.add_option("--width", options.gpt.width);
  app.add_option("--layers", options.gpt.layers);
  app.add_option("--heads", options.gpt.heads);
  app.add_option("--vocabulary", options.gpt.vocabulary);
  app.add_option("--length", options.gpt.block_size, "tokens of a sequence");
  app.add_option("--batch", options.batch, "sequences of a rank; of all with tensor");
  app.add_option("--parallel", options.parallel)
      ->check(CLI::IsMember({"tensor", "fully-sharded", "replicas", "pipeline", "none"}));
  app.add_option("--schedule", options.schedule, "of a pipeline, with 4 microbatches");
  app.add_option("--cut", options.cut, "first layers of the stages but the first");
  app.add_flag("--simulate", options.simulate,
               "the step of the pipeline that its stages promise, each measured alone");
  app.add_flag("--recompute", options.gpt.recompute, "keep only the inputs of blocks");
  app.add_flag("--memory", options.memory,
               "of fully-sharded and replicas: also print memory_report(), and its bytes as JSON");
  app.add_option("--steps", options.steps)->check(CLI::PositiveNumber);
}

constexpr int microbatches = 4;

double median(std::vector<double> values) {
  std::ranges::nth_element(values, values.begin() + values.size() / 2);
  return values[values.size() / 2];
}

double milliseconds_of(const std::function<void()>& run) {
  const auto begin = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

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
  if (world.rank() == 0) std::printf("{\"ms\": %.4f}\n", median(times));
}

struct MeasuredStage {
  std::vector<lockstep::pipeline::Layer> layers;

  lockstep::pipeline::PassedValue forward(lockstep::pipeline::PassedValue value) const {
    for (const auto& layer : layers) value = layer.forward(value);
    return value;
  }
};

// Milliseconds of a stage. All ranks measure concurrently, so that all cores are busy as in the
// pipeline.
lockstep::PipelineStageCost measured(const MeasuredStage& stage, bool is_first, bool is_last,
                                     const StepOptions& options) {
  const std::int64_t rows = options.batch / microbatches;
  const auto tokens =
      torch::randint(options.gpt.vocabulary, {rows, options.gpt.block_size}, torch::kLong);
  const auto input =
      is_first
          ? tokens
          : torch::randn({rows, options.gpt.block_size, options.gpt.width}).requires_grad_(true);
  std::vector<double> forwards, backwards;
  for (int i = -3; i < 4 * options.steps; ++i) {
    torch::Tensor output;
    const double forward = milliseconds_of([&] {
      output = stage.forward(lockstep::pipeline::pack(input)).tensors.at(0);
      if (is_last) output = torch::cross_entropy_loss(output.flatten(0, 1), tokens.flatten());
    });
    const auto gradient = torch::ones_like(output);
    const double backward = milliseconds_of([&] { output.backward(gradient); });
    if (i < 0) continue;
    forwards.push_back(forward);
    backwards.push_back(backward);
  }
  const double whole = median(backwards);
  return {.forward = median(forwards),
          .backward_input = whole / 2,
          .backward_weight = whole / 2,
          .whole_backward = whole};
}

void simulate(const StepOptions& options, const lockstep::LayerList& layers,
              const lockstep::PipelineOrder& order, const lockstep::ProcessGroup& world) {
  std::vector<double> optimizer_times;
  std::vector<lockstep::PipelineStageCost> own(static_cast<std::size_t>(order.stages()));
  std::vector<torch::Tensor> parameters;
  for (int stage = 0; stage < order.stages(); ++stage) {
    const auto i = static_cast<std::size_t>(stage);
    if (order.rank_of_stage[i] != world.rank()) continue;
    MeasuredStage mine;
    const int begin = stage == 0 ? 0 : options.cut[i - 1];
    const int end = i < options.cut.size() ? options.cut[i] : static_cast<int>(layers.size());
    for (int layer = begin; layer < end; ++layer) {
      mine.layers.push_back(layers.make(static_cast<std::size_t>(layer)));
      for (const auto& parameter : mine.layers.back().module->parameters())
        parameters.push_back(parameter);
    }
    own[i] = measured(mine, stage == 0, stage + 1 == order.stages(), options);
  }
  lockstep::AdamW adamw(parameters, torch::optim::AdamWOptions(1e-4));
  for (int i = 0; i < options.steps; ++i) {
    world.barrier();
    optimizer_times.push_back(milliseconds_of([&] { adamw.step(); }));
  }
  std::vector<lockstep::PipelineStageCost> costs;
  for (int stage = 0; stage < order.stages(); ++stage)
    costs.push_back(
        lockstep::broadcast_value(own[static_cast<std::size_t>(stage)], world,
                                  order.rank_of_stage[static_cast<std::size_t>(stage)]));
  double optimizer = 0;
  for (const double each : lockstep::all_gather_value(median(optimizer_times), world))
    optimizer = std::max(optimizer, each);
  if (world.rank() == 0)
    std::printf("{\"ms\": %.4f}\n", lockstep::simulate(order, costs).time + optimizer);
}

void train_pipeline(const StepOptions& options, const lockstep::ProcessGroup& world) {
  const lockstep::LayerList layers = gpt_layers(options.gpt);
  const auto schedule = lockstep::parse_pipeline_schedule(options.schedule);
  const auto order = lockstep::make_pipeline_order(
      schedule, {.ranks = world.size(), .microbatches = microbatches});
  if (options.simulate) return simulate(options, layers, order, world);
  lockstep::Pipeline pipeline(layers, world, {.order = order, .cut = options.cut});
  lockstep::AdamW adamw(pipeline.parameters(), torch::optim::AdamWOptions(1e-4));
  const auto tokens = torch::randint(options.gpt.vocabulary,
                                     {options.batch, options.gpt.block_size + 1}, torch::kLong);
  time_steps(options, world, adamw, [&] {
    pipeline.step(tokens.slice(1, 0, -1), [&](const torch::Tensor& logits,
                                              const lockstep::Microbatch& part) {
      return torch::cross_entropy_loss(logits.flatten(0, 1), part.of(tokens.slice(1, 1)).flatten());
    });
  });
}

// Proportional set size of this process in bytes: a page of n processes counts 1/n.
std::int64_t proportional_bytes() {
  std::ifstream rollup("/proc/self/smaps_rollup");
  std::int64_t kilobytes = 0;
  for (std::string line; std::getline(rollup, line);)
    if (std::sscanf(line.c_str(), "Pss: %" SCNd64, &kilobytes) == 1) break;
  return kilobytes * 1024;
}

// Bytes of the ranks without a model, after a step of a small one.
std::int64_t memory_without_model(const lockstep::ProcessGroup& world) {
  {
    Gpt small({.vocabulary = 16, .block_size = 16, .layers = 1, .heads = 1, .width = 16});
    lockstep::AdamW adamw(small.parameters(), torch::optim::AdamWOptions(1e-4));
    small.forward(torch::zeros({1, 16}, torch::kLong)).sum().backward();
    adamw.step();
  }
  world.barrier();
  torch::Tensor bytes = torch::tensor(proportional_bytes(), torch::kLong);
  lockstep::all_reduce(bytes, world);
  return bytes.item<std::int64_t>();
}

void report_memory(const lockstep::DataParallelBase& ddp, const torch::optim::Optimizer& optimizer,
                   const lockstep::ProcessGroup& world, std::int64_t without_model) {
  const lockstep::MemoryReport report = lockstep::memory_report(ddp, optimizer);
  if (world.rank() != 0) return;
  std::int64_t parameters = 0;
  for (const auto& parameter : ddp.replica().parameters()) parameters += parameter.numel();
  std::printf("%s{\"parameters\": %" PRId64
              ", \"predicted\": %zu, \"resident\": %zu, "
              "\"without_model\": %" PRId64 "}\n",
              to_string(report).c_str(), parameters, report.predicted.host.total(),
              report.resident_host.process, without_model);
}

template <class Loss>
void train_fully_sharded(const StepOptions& options, const lockstep::ProcessGroup& world,
                         const torch::Tensor& inputs, const Loss& loss_of) {
  const std::int64_t without_model = options.memory ? memory_without_model(world) : 0;
  const auto make = [&] { return std::make_shared<Gpt>(options.gpt); };
  const auto gpt = lockstep::on_meta(make);
  lockstep::FullyShardedDataParallel fsdp(gpt, world, {.units = {"transformer.h.*"}});
  fsdp.initialize(make);
  lockstep::FullyShardedOptimizer<lockstep::AdamW> adamw(fsdp, gpt->parameters(),
                                                         torch::optim::AdamWOptions(1e-4));
  time_steps(options, world, adamw, [&] { loss_of(fsdp(inputs)).backward(); });
  if (options.memory) report_memory(fsdp, adamw, world, without_model);
}

int train(const StepOptions& options) {
  auto world = lockstep::init_process_group();
  torch::manual_seed(0);
  if (options.parallel == "pipeline") {
    train_pipeline(options, world);
    lockstep::destroy_process_group(world);
    return 0;
  }
  const auto tokens = torch::randint(options.gpt.vocabulary,
                                     {options.batch, options.gpt.block_size + 1}, torch::kLong);
  const auto inputs = tokens.slice(1, 0, -1), targets = tokens.slice(1, 1).flatten();
  const auto loss_of = [&](const torch::Tensor& logits) {
    return torch::cross_entropy_loss(logits.flatten(0, 1), targets);
  };
  const torch::optim::AdamWOptions adamw_options(1e-4);
  if (options.parallel == "fully-sharded") {
    train_fully_sharded(options, world, inputs, loss_of);
  } else if (options.parallel == "replicas") {
    const std::int64_t without_model = options.memory ? memory_without_model(world) : 0;
    const auto gpt = std::make_shared<Gpt>(options.gpt);
    lockstep::DistributedDataParallel ddp(gpt, world);
    lockstep::AdamW adamw(gpt->parameters(), adamw_options);
    time_steps(options, world, adamw, [&] { loss_of(ddp(inputs)).backward(); });
    if (options.memory) report_memory(ddp, adamw, world, without_model);
  } else {
    const auto gpt = std::make_shared<Gpt>(options.gpt);
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
  StepOptions options;
  CLI::App app("Times steps of a GPT that all ranks hold together");
  add_options(app, options);
  CLI11_PARSE(app, argc, argv);
  return lockstep::record([&] { return train(options); });
}
