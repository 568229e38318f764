// Trains a model that was written and compiled in Python, without Python.
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
// them by the gradient that it gets, and hands them to autograd: hooks, accumulation and
// DistributedDataParallel see a graph of one node. The module has the parameters and buffers of the
// Python model under their names there, so checkpoints and weights are exchanged with it. Tied
// weights have the first of their names.
//
// Training mode is the mode of make(): what was in evaluation mode there, as a backbone may be, is
// in it always. In training mode, forward() changes buffers as BatchNorm does, with or without
// gradients; without (NoGradGuard), the gradients are computed in vain. In evaluation mode,
// model->eval(), it runs code without a backward pass and its loss has no gradient. Random numbers
// are those of LibTorch's generator, as in the Python model. Results differ from the Python model's
// by rounding, 1e-6 of a value, because operations are fused.
//
// The compiled code has its own precision (--bf16) and number of threads (--threads). Autocast has
// no effect on it, and load() logs a warning if the process has another number of threads.
//
// docs/guide/compiled.md has a whole program.
//
// Thread safety: none; one training loop uses it.
// Errors: misuse, naming what is wrong, for inputs of another number, type or shape than those of
// the export, for inputs that require a gradient or are not on the CPU, for parameters of another
// type, shape or layout, for submodules that were replaced, and for a parameter that requires a
// gradient but was frozen when it was exported. A second backward() through one forward(), and one
// with create_graph, throw misuse. unsupported for parameters that a FullyShardedDataParallel
// brings and takes away.

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
  // Loads the package that lockstep_export wrote, and initial weights: files of safetensors
  // (lockstep/checkpoint/weights.h) with the names of the Python model, such as the one that the
  // exporter writes beside the package. A package is a
  // program: load only those of people whom you trust.
  // Errors: system if a file cannot be read; corrupt, naming the file, if it is damaged;
  // unsupported if the package was compiled with another minor version of PyTorch, or for a CPU
  // with instructions that this one lacks; as load_weights().
  static std::shared_ptr<CompiledModule> load(const std::filesystem::path& package,
                                              const std::filesystem::path& weights);

  ~CompiledModule() override;

  // Returns the loss, for the inputs of the Python model's forward(), in their order.
  template <std::same_as<at::Tensor>... Inputs>
  at::Tensor forward(const Inputs&... inputs) {
    return run({inputs...});
  }

  // Further results of the Python model's forward() in the last call, such as logits, without
  // gradients.
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
