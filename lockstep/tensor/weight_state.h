// The state of a model's weights. It lists its tensors, so that load_weights() can convert types
// and load a part of them. Errors: as those of module_state.h.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/tensor/state.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

struct StateTarget {
  at::ScalarType type = at::kFloat;  // The type in which it is loaded.
  std::vector<std::int64_t> shape;   // Shape of the whole.
  std::string first_name;            // Tied weights have several names.
  bool has_value = true;             // False after construction on meta.
};

using StateTargets = std::map<std::string, StateTarget>;

class LOCKSTEP_API WeightState : public Stateful {
 public:
  virtual StateTargets targets() = 0;

  // Tensors missing in `saved` keep their values.
  virtual StateRequest wanted_of_part(const StateDict& saved) = 0;
};

// For classes that hold a module. `types`: saved types that differ from the module's.
LOCKSTEP_API StateTargets targets_of(const torch::nn::Module& module, bool has_values,
                                     const std::map<std::string, at::ScalarType>& types = {});

// As require_fits(), but `saved` may lack tensors.
LOCKSTEP_API void require_part_fits(const torch::nn::Module& module, const StateDict& saved,
                                    const std::map<std::string, at::ScalarType>& types = {});

}  // namespace lockstep
