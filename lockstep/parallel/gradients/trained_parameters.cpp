// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/trained_parameters.h"

#include <set>

namespace lockstep {

NamedTensors trained_parameters(NamedTensors parameters) {
  std::set<const void*> seen;
  std::erase_if(parameters, [&](const auto& entry) {
    const at::Tensor& parameter = entry.second;
    return !parameter.requires_grad() || !seen.insert(parameter.unsafeGetTensorImpl()).second;
  });
  return parameters;
}

}  // namespace lockstep
