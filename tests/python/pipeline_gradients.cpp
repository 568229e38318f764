// Lockstep's side of pipeline_gradients_test.py: one step of a small model on pipelines of every
// schedule, with threads as two ranks.
//   pipeline_gradients FOLDER
// FOLDER holds the inputs, and gets ours.RANK: losses and gradients, named SCHEDULE.MICROBATCHES.

// SPDX-License-Identifier: Apache-2.0
#include <torch/nn/functional/loss.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <filesystem>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/nn/layers.h"
#include "lockstep/parallel/pipeline/pipeline.h"
#include "lockstep/tensor/vector_math.h"

namespace {

using Inputs = std::map<std::string, torch::Tensor>;

constexpr std::int64_t width = 16;

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    register_module("norm", norm);
    register_module("linear", linear);
  }
  torch::Tensor forward(const torch::Tensor& x) { return x + torch::gelu(linear(norm(x))); }

  lockstep::nn::LayerNorm norm{torch::nn::LayerNormOptions({width})};
  lockstep::nn::Linear linear{width, width};
};
TORCH_MODULE(Block);

// Gives all parameters the inputs NAME.PARAMETER.
template <class Layer>
Layer loaded(Layer layer, const std::string& name, const Inputs& inputs) {
  const torch::NoGradGuard no_grad;
  for (auto& item : layer->named_parameters())
    item.value().copy_(inputs.at(name + "." + item.key()));
  return layer;
}

lockstep::LayerList layers_of(const Inputs& inputs) {
  lockstep::LayerList layers;
  layers.add("in", [&] { return loaded(lockstep::nn::Linear(12, width), "in", inputs); });
  for (const std::string name : {"h.0", "h.1"})
    layers.add(name, [&inputs, name] { return loaded(Block(), name, inputs); });
  layers.add("out", [&] { return loaded(lockstep::nn::Linear(width, 5), "out", inputs); });
  return layers;
}

lockstep::NamedTensors run(lockstep::PipelineSchedule schedule, int microbatches,
                           const Inputs& inputs, const lockstep::ProcessGroup& world) {
  lockstep::Pipeline pipeline(layers_of(inputs), world,
                              {.schedule = schedule, .microbatches = microbatches});
  const auto loss_of = [&](const torch::Tensor& logits, const lockstep::Microbatch& part) {
    return torch::cross_entropy_loss(logits, part.of(inputs.at("classes")));
  };
  double loss = 0;
  for (int step = 0; step < 2; ++step) {  // By messages, then through shared memory.
    for (auto& parameter : pipeline.parameters()) parameter.mutable_grad() = torch::Tensor();
    loss = pipeline.step(inputs.at("x"), loss_of);
  }
  const std::string key =
      std::string(lockstep::name_of(schedule)) + "." + std::to_string(microbatches) + ".";
  lockstep::NamedTensors results{{key + "loss", torch::tensor(loss, torch::kDouble)}};
  for (const auto& [name, parameter] : pipeline.named_parameters())
    results.emplace_back(key + name, parameter.grad());
  return results;
}

void run_all(const std::filesystem::path& folder) {
  torch::set_num_threads(1);
  lockstep::settle_vector_math();  // Otherwise ranks, which are threads, make the first call.
  Inputs inputs;
  for (auto& [name, tensor] : lockstep::load_safetensors(folder / "inputs").tensors)
    inputs.emplace(name, tensor);
  lockstep::run_in_process(2, [&](lockstep::ProcessGroup& world) {
    lockstep::NamedTensors results;
    for (const char* const schedule : {"gpipe", "1f1b", "interleaved", "looped_bfs", "zb1p", "zbv"})
      for (const int microbatches : {4, 6})
        for (auto& each :
             run(lockstep::parse_pipeline_schedule(schedule), microbatches, inputs, world))
          results.push_back(std::move(each));
    lockstep::save_safetensors(folder / ("ours." + std::to_string(world.rank())), results);
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 64;
  try {
    run_all(argv[1]);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
