// Trains a model compiled in Python, without Python (docs/guide/compiled.md).
//
//   auto model = lockstep::CompiledModule::load("step.pt2", "step.safetensors");
//   lockstep::DistributedDataParallel ddp(model, world);
//   ...
//   ddp(batch.data, batch.target).backward();
//
// forward() computes the loss and all gradients in one call of compiled code; backward() scales
// them and passes them to autograd. Parameters and buffers have their names in the Python model; a
// tied weight has its first name. Fused operations differ from Python by rounding.
//
// Thread safety: none.

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
  // Loads the package that lockstep_export wrote, and initial weights: safetensors files with the
  // Python model's names. A package is a program: load only trusted ones. Logs a warning if the
  // process has another number of threads than the compiled code (--threads).
  // Errors: system for an unreadable file or unwritable TMPDIR; corrupt for a damaged file.
  // Unsupported if the package was compiled with another minor version of PyTorch, or for
  // instructions that this CPU lacks. Also load_weights()'s.
  static std::shared_ptr<CompiledModule> load(const std::filesystem::path& package,
                                              const std::filesystem::path& weights);

  ~CompiledModule() override;

  // Returns the loss, for the inputs of the Python model's forward(), in their order. Training mode
  // changes buffers as BatchNorm does, and computes gradients even under NoGradGuard. Modules that
  // the exporter had in evaluation mode stay in it. After model->eval(), the loss has no gradient.
  // Autocast has no effect: the exporter's option --bf16 sets the precision.
  //
  // Errors: misuse for inputs of another number, type or shape than exported, that require a
  // gradient, or are not on the CPU. Misuse for replaced parameters or buffers, for another type,
  // shape, layout or device of one, and for parameters exported as frozen that require a gradient.
  // Unsupported for parameters whose memory a FullyShardedDataParallel attaches and detaches.
  // backward(): misuse for a second call after one forward(), and for create_graph.
  template <std::same_as<at::Tensor>... Inputs>
  at::Tensor forward(const Inputs&... inputs) {
    return run({inputs...});
  }

  // Other results of the last forward(), such as logits, without gradients.
  const std::vector<at::Tensor>& outputs() const { return outputs_; }

 private:
  explicit CompiledModule(std::unique_ptr<const compiled::LoadedPackage> package);

  at::Tensor run(const std::vector<at::Tensor>& inputs);
  at::Tensor train_on(const std::vector<at::Tensor>& inputs);
  std::vector<at::Tensor> call(const compiled::Code& code, const std::vector<at::Tensor>& inputs);
  void require_state() const;

  const std::unique_ptr<const compiled::LoadedPackage> package_;
  std::vector<at::Tensor> state_;  // Parameters, then buffers, in the package's order.
  std::vector<at::Tensor> outputs_;
};

}  // namespace lockstep
