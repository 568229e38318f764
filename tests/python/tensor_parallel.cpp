// Lockstep's side of tensor_parallel_test.py, with threads as ranks, named as in
// tensor_parallel_pytorch.py.
//   tensor_parallel FOLDER
// FOLDER holds the inputs, and gets ours.TP.RANK.

// SPDX-License-Identifier: Apache-2.0
#include <torch/nn/functional/loss.h>
#include <torch/types.h>

#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "examples/models/gpt.h"
#include "examples/models/llama.h"
#include "examples/models/vit.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/comm/in_process.h"
#include "lockstep/nn/cross_entropy.h"
#include "lockstep/optim/optimizers.h"
#include "lockstep/parallel/tensor_parallel/parallelize_module.h"
#include "lockstep/tensor/sharded_module.h"
#include "lockstep/tensor/vector_math.h"

namespace {

using lockstep::ColwiseParallel, lockstep::RowwiseParallel, lockstep::SequenceParallel;
using lockstep::Placement, lockstep::replicated, lockstep::sharded;

using Inputs = std::map<std::string, torch::Tensor>;

struct Rig {
  const Inputs& inputs;
  const lockstep::ProcessGroup& group;
  lockstep::NamedTensors results = {};

  torch::Tensor placed(const std::string& name, Placement placement) const {
    return lockstep::redistribute(inputs.at(name), replicated, placement, group).clone();
  }

  void record(const std::string& name, const torch::Tensor& tensor) {
    results.emplace_back(name, tensor.detach().clone());
  }

  // Records both, and the gradient of x when y's are the given weights.
  void record_pass(const std::string& name, const torch::Tensor& x, const torch::Tensor& y,
                   const torch::Tensor& weights) {
    (y * weights).sum().backward();
    record(name + ".y", y);
    if (x.grad().defined()) record(name + ".dx", x.grad());
  }
};

// Gives all parameters the inputs PREFIX.NAME, of which none is left over.
void load(torch::nn::Module& module, const std::string& prefix, const Inputs& inputs) {
  const torch::NoGradGuard no_grad;
  std::size_t count = 0;
  for (const auto& [name, tensor] : inputs) count += name.starts_with(prefix + ".") ? 1 : 0;
  lockstep::require(count == module.named_parameters().size(), prefix + ": other parameters");
  for (auto& item : module.named_parameters()) {
    const torch::Tensor& value = inputs.at(prefix + "." + item.key());
    lockstep::require(value.sizes() == item.value().sizes(), item.key() + " has another shape");
    item.value().copy_(value);
  }
}

// --- Layers --------------------------------------------------------------------------------------

template <class Layer>
void run_layer(Rig& rig, const std::string& name, const std::string& kind, Layer layer,
               const lockstep::ParallelStyle& style, Placement into, Placement out) {
  load(*layer, kind, rig.inputs);
  torch::nn::Module net;
  net.register_module(name, layer);
  lockstep::parallelize_module(net, rig.group, {{name, style}});
  torch::Tensor x = rig.placed(kind == "embedding" ? "tokens" : "x", into);
  x.set_requires_grad(x.is_floating_point());
  const torch::Tensor y = layer->forward(x);
  rig.record_pass(name, x, y, rig.placed(kind == "linear" ? "w24" : "w12", out));
  for (const auto& item : layer->named_parameters()) {
    rig.record(name + "." + item.key(), item.value());
    rig.record(name + "." + item.key() + ".grad", item.value().grad());
  }
}

void run_layers(Rig& rig) {
  const auto linear = [&](const char* name, const lockstep::ParallelStyle& style, Placement into,
                          Placement out) {
    run_layer(rig, name, "linear", lockstep::nn::Linear(12, 24), style, into, out);
  };
  linear("colwise", ColwiseParallel(), replicated, sharded(-1));
  linear("colwise_gathered", ColwiseParallel({.output = replicated}), replicated, replicated);
  linear("colwise_of_sequence", ColwiseParallel({.input = sharded(1)}), sharded(1), sharded(-1));
  linear("rowwise", RowwiseParallel(), sharded(-1), replicated);
  linear("rowwise_of_whole", RowwiseParallel({.input = replicated}), replicated, replicated);
  linear("rowwise_to_sequence", RowwiseParallel({.output = sharded(1)}), sharded(-1), sharded(1));
  run_layer(rig, "embedding_colwise", "embedding", lockstep::nn::Embedding(11, 12),
            ColwiseParallel(), replicated, sharded(-1));
  run_layer(rig, "embedding_rowwise", "embedding", lockstep::nn::Embedding(11, 12),
            RowwiseParallel(), replicated, replicated);
  run_layer(rig, "layer_norm", "layer_norm",
            lockstep::nn::LayerNorm(torch::nn::LayerNormOptions({12})), SequenceParallel(),
            sharded(1), sharded(1));
  run_layer(rig, "rms_norm", "rms_norm", lockstep::nn::RMSNorm(lockstep::nn::RMSNormOptions({12})),
            SequenceParallel(), sharded(1), sharded(1));
}

void run_cross_entropies(Rig& rig) {
  using namespace at::Reduction;
  for (const auto& [name, reduction] : {std::pair("mean", Mean), {"sum", Sum}, {"none", None}})
    for (const std::int64_t ignored : {-100, 1}) {
      const torch::Tensor logits = rig.placed("logits", sharded(-1)).set_requires_grad(true);
      const torch::Tensor loss =
          lockstep::cross_entropy(logits, rig.inputs.at("classes"), rig.group,
                                  {.ignore_index = ignored, .reduction = reduction});
      (loss * 3).sum().backward();
      const std::string key = "cross_entropy." + std::string(name) + "." + std::to_string(ignored);
      rig.record(key, loss);
      rig.record(key + ".grad", logits.grad());
    }
}

// In front of a computation and behind it.
void run_preparations(Rig& rig) {
  const std::vector<lockstep::Redistribution> preparations = {{sharded(1), replicated},
                                                              {replicated, sharded(1)},
                                                              {replicated, sharded(-1)},
                                                              {sharded(1), sharded(2)}};
  for (const bool behind : {false, true})
    for (std::size_t i = 0; i < preparations.size(); ++i) {
      torch::nn::Module net;
      const auto prepare = net.register_module("prepare", lockstep::nn::Redistribute());
      lockstep::parallelize_module(net, rig.group, {{"prepare", preparations[i]}});
      const torch::Tensor x = rig.placed("x", preparations[i].input).set_requires_grad(true);
      const torch::Tensor y = behind ? prepare->forward(x * 2) : prepare->forward(x) * 2;
      rig.record_pass((behind ? "prepare_output." : "prepare_input.") + std::to_string(i), x, y,
                      rig.placed("w12", preparations[i].output));
    }
}

// --- Models --------------------------------------------------------------------------------------

// `loss_of(model, step)` is a step's loss.
template <class Model, class Loss>
void train(Rig& rig, const std::string& name, const std::shared_ptr<Model>& model,
           const lockstep::ParallelPlan& plan, const Loss& loss_of) {
  model->to(torch::kDouble);
  load(*model, name, rig.inputs);
  lockstep::parallelize_module(*model, rig.group, plan);
  lockstep::AdamW adamw(model->parameters(), torch::optim::AdamWOptions(1e-2));
  std::vector<torch::Tensor> losses;
  for (std::int64_t step = 0; step < rig.inputs.at("texts").size(0); ++step) {
    adamw.zero_grad();
    const torch::Tensor loss = loss_of(*model, step);
    loss.backward();
    losses.push_back(loss.detach());
    adamw.step();
  }
  rig.record(name + ".losses", torch::stack(losses));
  for (const auto& [key, tensor] : lockstep::whole_parameters(*model))
    rig.record(name + "." + key, tensor);
}

void train_models(Rig& rig) {
  const auto of_text = [&](auto& model, std::int64_t step) {
    const torch::Tensor text = rig.inputs.at("texts")[step];
    const torch::Tensor logits = model.forward(text.slice(1, 0, -1));
    return lockstep::cross_entropy(logits.flatten(0, 1), text.slice(1, 1).flatten(), rig.group);
  };
  const auto of_images = [&](Vit& model, std::int64_t step) {
    return torch::nn::functional::cross_entropy(model.forward(rig.inputs.at("images")[step]),
                                                rig.inputs.at("image_classes")[step]);
  };
  const GptOptions gpt{.vocabulary = 51, .block_size = 12, .layers = 2, .heads = 4, .width = 32};
  train(rig, "gpt", std::make_shared<Gpt>(gpt), gpt_plan(), of_text);
  const LlamaOptions llama{.vocabulary = 51,
                           .layers = 2,
                           .heads = 4,
                           .kv_heads = 2,
                           .width = 32,
                           .hidden = 96,
                           .tied = false};
  train(rig, "llama", std::make_shared<Llama>(llama), llama_plan(llama), of_text);
  const VitOptions vit{
      .image = 8, .patch = 4, .layers = 2, .heads = 4, .width = 32, .hidden = 64, .classes = 10};
  train(rig, "vit", std::make_shared<Vit>(vit), vit_plan(vit), of_images);
}

void run_all(const std::filesystem::path& folder) {
  torch::set_num_threads(1);
  lockstep::settle_vector_math();  // Otherwise ranks, which are threads, make the first call.
  Inputs inputs;
  for (auto& [name, tensor] : lockstep::load_safetensors(folder / "inputs").tensors)
    inputs.emplace(name, tensor);
  for (const int tp : {2, 3, 4})
    lockstep::run_in_process(tp, [&](lockstep::ProcessGroup& group) {
      Rig rig{inputs, group};
      run_layers(rig);
      run_cross_entropies(rig);
      run_preparations(rig);
      if (tp == 2) train_models(rig);
      lockstep::save_safetensors(
          folder / ("ours." + std::to_string(tp) + "." + std::to_string(group.rank())),
          rig.results);
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
