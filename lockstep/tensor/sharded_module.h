// Modules that hold parts of their parameters. Checkpoints, optimizer state, norms, digests and
// drift checks query the layouts here.
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

// The layout of this rank's part in the whole parameter.
struct ParameterLayout {
  std::vector<std::int64_t> shape;  // Shape of the whole.
  Boxes boxes;                      // The boxes that the parameter consists of.
  ProcessGroup group;               // The ranks with all parts; each element once.

  // True if these ranks have their own data, like replicas: experts. backward() then averages the
  // gradient over the ranks of `group` and of `replicas`, if any, which have the same part.
  // DistributedDataParallel skips the parameter.
  bool is_averaged = false;
  std::optional<ProcessGroup> replicas = {};
};

// By the parameter's name.
using Layouts = std::map<std::string, ParameterLayout>;

// An interface of a torch::nn::Module.
class LOCKSTEP_API ShardedModule {
 public:
  virtual ~ShardedModule() = default;

  // Layouts of the module's own parameters, without its children's. Whole parameters have none.
  virtual const Layouts& layouts() const = 0;
};

// The layouts of all parameters of which this rank holds a part.
LOCKSTEP_API Layouts layouts_of(const torch::nn::Module& module);

// The whole tensor of `part`. Collective over layout.group. Errors: those of ProcessGroup.
LOCKSTEP_API at::Tensor gather_whole(const at::Tensor& part, const ParameterLayout& layout);

// named_parameters(), with whole tensors. Collective over the group of each layout. Parameters that
// are not cut share the module's memory.
LOCKSTEP_API NamedTensors whole_parameters(const torch::nn::Module& module);

// The same for named_tensors().
LOCKSTEP_API NamedTensors whole_tensors(const torch::nn::Module& module);

}  // namespace lockstep
