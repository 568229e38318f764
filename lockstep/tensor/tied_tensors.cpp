// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/tied_tensors.h"

#include <cstdint>
#include <tuple>
#include <vector>

namespace lockstep {

std::map<std::string, std::string> first_names(const NamedTensors& tensors) {
  using Place =
      std::tuple<const void*, at::ScalarType, std::vector<std::int64_t>, std::vector<std::int64_t>>;
  std::map<Place, std::string> known;
  std::map<std::string, std::string> first;
  for (const auto& [name, tensor] : tensors) {
    first.emplace(name, name);
    if (tensor.numel() == 0 || tensor.is_meta()) continue;  // These have no memory to share.
    const Place place{tensor.const_data_ptr(), tensor.scalar_type(), tensor.sizes().vec(),
                      tensor.strides().vec()};
    first[name] = known.try_emplace(place, name).first->second;
  }
  return first;
}

}  // namespace lockstep
