// A rank's layers, as a module with the names of the whole model.
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <map>
#include <string>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/parallel/detail/passed_value.h"
#include "lockstep/parallel/pipeline/layer_list.h"

namespace lockstep {

class LOCKSTEP_API StageModule : public torch::nn::Module {
 public:
  void add(int stage, const std::string& name, pipeline::Layer layer);

  // Errors name the layer.
  pipeline::PassedValue forward(int stage, const pipeline::PassedValue& value);

  // backward() of the result passes every `.grad` to autograd, as if one pass had computed all.
  at::Tensor forward();

  // Whether a parameter requires a gradient.
  bool is_trained(int stage) const;

 private:
  struct Named {
    std::string name;
    pipeline::Layer layer;
  };
  std::map<int, std::vector<Named>> stages_;
};

}  // namespace lockstep
