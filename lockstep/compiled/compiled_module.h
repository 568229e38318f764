// Trains a model that was written and compiled in Python, without Python (docs/guide/compiled.md).
//
//   python -m lockstep_export my_model:make --batch 32 --dynamic-batch --out step.pt2
//
//   auto model = lockstep::CompiledModule::load("step.pt2", "step.safetensors");
//   lockstep::DistributedDataParallel ddp(model, world);
//   lockstep::AdamW adamw(model->parameters(), torch::optim::AdamWOptions(1e-3));
//   for (auto& batch : loader) {
//     adamw.zero_grad();
//     ddp(batch.data, batch.target).backward();
//     adamw.step();
//   }
//
// forward() computes the loss and all gradients in one call of compiled code. backward() multiplies
// these gradients by the incoming one and passes them to autograd, as a graph of one node.
// Parameters and buffers have their names in the Python model, so checkpoints and weights can be
// exchanged. A tied weight has its first name. Results differ from Python by rounding, 1e-6 of a
// value, because operations are fused.
//
// Thread safety: none; one training loop uses it.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <concepts>
#include <filesystem>
#include <memory>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

namespace compiled {
class Code;
struct LoadedPackage;
}  // namespace compiled

class LOCKSTEP_API CompiledModule : public torch::nn::Module {
 public:
  // Loads the package that lockstep_export wrote, and initial weights: safetensors files
  // (lockstep/checkpoint/weights.h) with the names of the Python model, such as the exporter's file
  // beside the package. A package is a program: load only packages from trusted sources.
  // Logs a warning if the process has another number of threads than the compiled code (--threads).
  // Errors: system if a file cannot be read; corrupt, naming the file, if it is damaged;
  // unsupported if the package was compiled with another minor version of PyTorch, or for a CPU
  // with instructions that this one lacks; as load_weights().
  static std::shared_ptr<CompiledModule> load(const std::filesystem::path& package,
                                              const std::filesystem::path& weights);

  ~CompiledModule() override;

  // Returns the loss, for the inputs of the Python model's forward(), in their order.
  //
  // In training mode, it changes buffers as BatchNorm does, and computes gradients even under
  // NoGradGuard. Modules that make() put into evaluation mode, such as a backbone, stay in it.
  // After model->eval() it runs code without a backward pass, and the loss has no gradient. Random
  // numbers come from LibTorch's generator. The code has its own precision (--bf16); Autocast has
  // no effect on it.
  // Errors: misuse, naming the cause, for inputs of another number, type or shape than exported,
  // that require a gradient, or are not on the CPU. Also for parameters of another type, shape or
  // layout, for replaced submodules, and for parameters that require a gradient but were exported
  // as frozen. Unsupported for parameters whose memory a FullyShardedDataParallel attaches and
  // detaches. backward(): misuse for a second call after one forward(), and for create_graph.
  template <std::same_as<at::Tensor>... Inputs>
  at::Tensor forward(const Inputs&... inputs) {
    return run({inputs...});
  }

  // The other results of the last forward(), such as logits, without gradients.
  const std::vector<at::Tensor>& outputs() const { return outputs_; }

 private:
  explicit CompiledModule(std::unique_ptr<const compiled::LoadedPackage> package);

  at::Tensor run(const std::vector<at::Tensor>& inputs);
  at::Tensor train_on(const std::vector<at::Tensor>& inputs);
  std::vector<at::Tensor> call(const compiled::Code& code, const std::vector<at::Tensor>& inputs);
  void require_state() const;

  const std::unique_ptr<const compiled::LoadedPackage> package_;
  std::vector<at::Tensor> state_;  // Parameters, then buffers, each in the package's order.
  std::vector<at::Tensor> outputs_;
};

}  // namespace lockstep
