// A TorchScript module as a torch::nn::Module with the same parameters and buffers, under their
// names and in their order in Python (docs/guide/torchscript.md).
//
//   auto model = std::make_shared<lockstep::ScriptModule>(torch::jit::load("net.pt"));
//   const torch::Tensor output = model->forward(batch).toTensor();
//
// A script may assign another tensor to a buffer, as in `self.seen = self.seen + 1`. forward(),
// forward(), named_buffers() and named_tensors() update this module's buffers to it, without its
// autograd graph. LibTorch's own buffers() does not.
//
// Thread safety: none.
// Errors: exceptions of the script. Misuse, naming the tensor, if a tensor was assigned to a
// parameter, or one of another type or device to a buffer.

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

  // Calls the script's forward(). Use the result's toTensor(), toTuple() and so on.
  c10::IValue forward(std::vector<c10::IValue> inputs, const torch::jit::Kwargs& named_inputs = {});

  // As above, with the inputs as arguments: tensors, numbers, lists and all else that an IValue can
  // hold.
  template <class... Inputs>
    requires(std::constructible_from<c10::IValue, const Inputs&> && ...)
  c10::IValue forward(const Inputs&... inputs) {
    return forward(std::vector<c10::IValue>{c10::IValue(inputs)...});
  }

  const torch::jit::Module& script() const { return script_; }

  void train(bool on = true) override;
  bool is_training() const noexcept override;

  // Copies the tensors that the script has assigned to buffers since the last call.
  void adopt_assigned_buffers() const;

  // Names of the layers whose class has "BatchNorm" in its name; they cannot be replaced.
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
