// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/function_module.h"

#include <set>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/tensor/module_path.h"

namespace lockstep {
namespace {

bool has_empty_part(const std::string& name) {
  return name.empty() || name.front() == '.' || name.back() == '.' || name.find("..") != name.npos;
}

void require_valid(const NamedTensors& tensors, std::set<std::string>& names) {
  for (const auto& [name, tensor] : tensors) {
    require(!has_empty_part(name), [&, &name = name] {
      return "function_module: the name '" + name + "' is empty or has an empty part";
    });
    require(names.insert(name).second, [&, &name = name] {
      return "function_module: two tensors have the name '" + name + "'";
    });
    require(tensor.defined(), [&, &name = name] {
      return "function_module: the tensor '" + name + "' is undefined";
    });
  }
}

}  // namespace

void register_tensors(torch::nn::Module& root, const NamedTensors& parameters,
                      const NamedTensors& buffers) {
  std::set<std::string> names;
  require_valid(parameters, names);
  require_valid(buffers, names);
  for (const auto& [path, tensor] : parameters) {
    require(tensor.is_leaf(), [&, &path = path] {
      return "function_module: parameter '" + path +
             "' is the result of an operation, so it gets no gradient: detach() it, and call "
             "requires_grad_()";
    });
    const auto [module, name] = place_of(root, path);
    module->register_parameter(name, tensor, tensor.requires_grad());
  }
  for (const auto& [path, tensor] : buffers) {
    const auto [module, name] = place_of(root, path);
    module->register_buffer(name, tensor);
  }
}

}  // namespace lockstep
