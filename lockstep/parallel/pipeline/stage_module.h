// The layers of a pipeline's rank, as a module with the names of the whole model.
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <map>
#include <string>
#include <vector>

#include "lockstep/parallel/detail/passed_value.h"
#include "lockstep/parallel/pipeline/layer_list.h"

namespace lockstep::parallel {

using pipeline::Layer;
using pipeline::PassedValue;

class StageModule : public torch::nn::Module {
 public:
  void add(int stage, const std::string& name, Layer layer);

  // Errors name the layer.
  PassedValue forward(int stage, const PassedValue& value);

  // Its result's backward() passes on every parameter's `.grad`, as if one pass had computed it.
  at::Tensor forward();

  // Whether a parameter of the stage requires a gradient.
  bool is_trained(int stage) const;

 private:
  struct Named {
    std::string name;
    Layer layer;
  };
  std::map<int, std::vector<Named>> stages_;
};

}  // namespace lockstep::parallel
