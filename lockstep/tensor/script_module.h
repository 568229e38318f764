// A TorchScript module as a torch::nn::Module, whose parameters and buffers have Python's names and
// order (docs/guide/torchscript.md).
//
//   auto model = std::make_shared<lockstep::ScriptModule>(torch::jit::load("net.pt"));
//   const torch::Tensor output = model->forward(batch).toTensor();
//
// A script may assign another tensor to a buffer, as in `self.seen = self.seen + 1`. forward(), and
// Lockstep's named_buffers() and named_tensors(), then give this module's buffer the memory of that
// tensor, without its autograd graph. LibTorch's own buffers() does not.
//
// Thread safety: none.
// Errors: exceptions of the script. Misuse, naming the tensor, if the script assigns to a
// parameter, or assigns a value of another type or device to a buffer.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/nn/module.h>

#include <concepts>
#include <cstddef>
#include <string>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

class LOCKSTEP_API ScriptModule : public torch::nn::Module {
 public:
  // Shares the object of `script`. Errors: misuse for an empty torch::jit::Module.
  explicit ScriptModule(torch::jit::Module script);

  // Calls the script's forward().
  c10::IValue forward(std::vector<c10::IValue> inputs, const torch::jit::Kwargs& named_inputs = {});

  // As above, for any types that an IValue can hold.
  template <class... Inputs>
    requires(std::constructible_from<c10::IValue, const Inputs&> && ...)
  c10::IValue forward(const Inputs&... inputs) {
    return forward(std::vector<c10::IValue>{c10::IValue(inputs)...});
  }

  const torch::jit::Module& script() const { return script_; }

  void train(bool on = true) override;
  bool is_training() const noexcept override;

  // Gives buffers the memory of tensors that the script assigned since the last call.
  void adopt_assigned_buffers() const;

  // Names of layers whose class has "BatchNorm" in its name; they cannot be replaced.
  std::vector<std::string> batch_norms() const;

 private:
  struct Slot {
    torch::jit::Module owner;
    std::size_t index;
    std::string name;
    at::Tensor tensor;
    bool is_buffer;
  };

  void mirror(torch::nn::Module& to, const torch::jit::Module& from, const std::string& prefix);

  torch::jit::Module script_;
  std::vector<Slot> slots_;
};

}  // namespace lockstep
