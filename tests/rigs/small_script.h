// Creates a TorchScript module without Python.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/jit/api/module.h>
#include <torch/types.h>

#include <string>

namespace lockstep::test {

// Maps rows of 3 elements to rows of 2. Has a layer with a parameter, of the class `layer_class`, a
// parameter and two buffers. forward() assigns `calls` and changes `total` in place.
inline torch::jit::Module small_script(const std::string& layer_class = "Layer") {
  torch::jit::Module layer(layer_class);
  layer.register_parameter("weight", torch::ones({3, 2}).requires_grad_(), /*is_buffer=*/false);
  layer.define("def forward(self, x):\n  return x.matmul(self.weight)\n");
  torch::jit::Module owner("Owner");
  owner.register_parameter("bias", torch::zeros({2}).requires_grad_(), /*is_buffer=*/false);
  owner.register_buffer("calls", torch::zeros({1}));
  owner.register_buffer("total", torch::zeros({1}));
  owner.register_attribute("training", c10::BoolType::get(), true);
  owner.register_module("layer", layer);
  owner.define(
      "def forward(self, x):\n"
      "  self.calls = self.calls + 1\n"
      "  self.total.add_(2)\n"
      "  return self.layer.forward(x) + self.bias\n");
  return owner;
}

}  // namespace lockstep::test
