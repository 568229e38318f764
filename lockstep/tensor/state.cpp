// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/state.h"

#include "lockstep/base/error.h"

namespace lockstep {

StateTensor whole(const at::Tensor& tensor) {
  return {.data = tensor.detach(), .shape = tensor.sizes().vec()};
}

StateRequest everything(const StateDict& saved) {
  StateRequest request;
  for (const auto& [name, tensor] : saved.tensors) request[name].end = tensor.data.numel();
  return request;
}

template <class T>
const T& value_of(const StateDict& state, const std::string& name) {
  const auto found = state.values.find(name);
  const T* value = found == state.values.end() ? nullptr : std::get_if<T>(&found->second);
  require(value != nullptr, [&] {
    return "the saved state has " + (found == state.values.end()
                                         ? "no value '" + name + "'"
                                         : "a value '" + name + "' of another type");
  });
  return *value;
}

template const bool& value_of<bool>(const StateDict&, const std::string&);
template const std::int64_t& value_of<std::int64_t>(const StateDict&, const std::string&);
template const double& value_of<double>(const StateDict&, const std::string&);
template const std::string& value_of<std::string>(const StateDict&, const std::string&);
template const std::vector<double>& value_of<std::vector<double>>(const StateDict&,
                                                                  const std::string&);

}  // namespace lockstep
