// SPDX-License-Identifier: Apache-2.0
#include "lockstep/tensor/module_path.h"

#include <cstddef>
#include <memory>

namespace lockstep {

std::pair<torch::nn::Module*, std::string> place_of(torch::nn::Module& root,
                                                    const std::string& path) {
  torch::nn::Module* module = &root;
  std::size_t begin = 0;
  for (std::size_t dot; (dot = path.find('.', begin)) != path.npos; begin = dot + 1) {
    const std::string child = path.substr(begin, dot - begin);
    const auto children = module->named_children();
    const auto* const found = children.find(child);
    module = found != nullptr
                 ? found->get()
                 : module->register_module(child, std::make_shared<torch::nn::Module>(child)).get();
  }
  return {module, path.substr(begin)};
}

}  // namespace lockstep
