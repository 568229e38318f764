// Modules that hold parts of their parameters, and the layouts of these parts.
//
// Thread safety: as the module's.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/tensor/state_types.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

struct ParameterLayout {
  std::vector<std::int64_t> shape;  // Shape of the whole.
  Boxes boxes;                      // This rank's parts of the whole.
  ProcessGroup group;               // These ranks together hold each element once.

  // True for experts, where these ranks have different data, like replicas. backward() then
  // averages the gradient over `group` and over `replicas`, the ranks with the same part, if any.
  // DistributedDataParallel skips the parameter.
  bool is_averaged = false;
  std::optional<ProcessGroup> replicas = {};
};

// By the parameter's name.
using Layouts = std::map<std::string, ParameterLayout>;

class LOCKSTEP_API ShardedModule {
 public:
  virtual ~ShardedModule() = default;

  // Layouts of the module's own parameters, without children. Whole parameters have none.
  virtual const Layouts& layouts() const = 0;
};

// Layouts of all parameters of which this rank holds a part.
LOCKSTEP_API Layouts layouts_of(const torch::nn::Module& module);

// Collective over layout.group. Errors: those of ProcessGroup.
LOCKSTEP_API at::Tensor gather_whole(const at::Tensor& part, const ParameterLayout& layout);

// named_parameters(), with whole tensors. Collective over the group of each layout. Uncut
// parameters share the module's memory.
LOCKSTEP_API NamedTensors whole_parameters(const torch::nn::Module& module);

// The same for named_tensors().
LOCKSTEP_API NamedTensors whole_tensors(const torch::nn::Module& module);

}  // namespace lockstep
