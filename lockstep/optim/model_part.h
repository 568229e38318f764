// Clips the gradients of a model that is spread over ranks.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/tensor/sharded_module.h"

namespace lockstep {

struct ModelPart {
  NamedTensors parameters;  // This rank's parameters.
  Layouts layouts = {};
  std::set<std::string> copies = {};        // Names of the parameters that another rank counts.
  std::optional<ProcessGroup> stages = {};  // Ranks that hold different parameters.
};

// Parameters that count for a norm: whole ones, or ones that are cut over the ranks of `group`.
struct CountedParameters {
  std::optional<ProcessGroup> group = {};
  std::vector<at::Tensor> parameters = {};
};

// The whole parameters, perhaps none, then those of each group, without copies.
std::vector<CountedParameters> counted_parameters(const ModelPart& model);

// Like clip_grad_norm_() for the module that all ranks' parts form.
at::Tensor clip_parts(const ModelPart& model, double max_norm, double norm_type,
                      bool error_if_nonfinite);

}  // namespace lockstep
