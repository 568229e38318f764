// Clips the gradients of a model of which each rank holds a part.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <set>
#include <string>

#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/tensor/sharded_module.h"

namespace lockstep {

struct ModelPart {
  NamedTensors parameters;  // Of this rank.
  Layouts layouts = {};
  std::set<std::string> copies = {};        // Names of those that another rank counts.
  std::optional<ProcessGroup> stages = {};  // Ranks that hold different parameters.
};

// As clip_grad_norm_() of the module that all ranks' parts together are.
at::Tensor clip_parts(const ModelPart& model, double max_norm, double norm_type,
                      bool error_if_nonfinite);

}  // namespace lockstep
