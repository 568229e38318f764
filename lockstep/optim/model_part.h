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
  NamedTensors parameters;
  Layouts layouts = {};
  std::set<std::string> copies = {};        // Names; another rank counts these.
  std::optional<ProcessGroup> stages = {};  // They hold different parameters.
};

// Counted in a norm: whole, or cut over the ranks of `group`.
struct CountedParameters {
  std::optional<ProcessGroup> group = {};
  std::vector<at::Tensor> parameters = {};
};

// Whole parameters (may be none), then each group's, without copies.
std::vector<CountedParameters> counted_parameters(const ModelPart& model);

// Like clip_grad_norm_() for the whole module.
at::Tensor clip_parts(const ModelPart& model, double max_norm, double norm_type,
                      bool error_if_nonfinite);

}  // namespace lockstep
