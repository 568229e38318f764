// Names, shapes and sizes of a pipeline's whole model.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lockstep/parallel/pipeline/layer_list.h"

namespace lockstep::parallel {

struct WholeModel {
  struct Tensor {
    std::vector<std::int64_t> shape;
    std::size_t layer = 0;
    bool is_parameter = false;
    at::ScalarType type = at::kFloat;
    bool is_trained = false;
  };
  std::map<std::string, Tensor> tensors;          // By name.
  std::vector<std::vector<std::string>> modules;  // By layer: all names.
  std::vector<double> elements;                   // By layer: those of parameters.

  // One per tensor, such as "h.0.linear.weight is Float [6, 6], trained".
  std::string lines() const;

  // `pattern`: of a plan.
  bool has_module(const std::string& pattern) const;
};

// Makes and drops each layer; restores generators.
// Errors: misuse for a module of two layers, impossible ties, and plan entries without a module.
WholeModel survey(const LayerList& layers);

}  // namespace lockstep::parallel
