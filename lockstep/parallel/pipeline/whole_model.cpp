// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/pipeline/whole_model.h"

#include <c10/util/StringUtil.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/tensor/generator_states.h"
#include "lockstep/tensor/name_pattern.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/tensor/on_meta.h"

namespace lockstep::parallel {
namespace {

void note(WholeModel& whole, std::size_t index, const std::string& name,
          const torch::nn::Module& module) {
  const auto add = [&](const std::string& key, const at::Tensor& tensor, bool is_parameter) {
    whole.tensors[name + "." + key] = {tensor.sizes().vec(), index, is_parameter,
                                       tensor.scalar_type(), tensor.requires_grad()};
  };
  std::vector<std::string> modules;
  for (const auto& each : module.named_modules(name)) modules.push_back(each.key());
  double elements = 0;
  for (const auto& [key, tensor] : named_parameters(module)) {
    add(key, tensor, true);
    elements += static_cast<double>(tensor.numel());
  }
  for (const auto& [key, tensor] : named_buffers(module)) add(key, tensor, false);
  whole.modules.push_back(std::move(modules));
  whole.elements.push_back(elements);
}

// Such as "Float [11, 6], trained".
std::string text_of(const WholeModel::Tensor& tensor) {
  return c10::str(tensor.type, ' ', at::IntArrayRef(tensor.shape),
                  tensor.is_trained ? ", trained" : ", frozen");
}

// On meta, unless the constructor needs values.
pipeline::Layer make_to_look_at(const LayerList& layers, std::size_t layer) {
  try {
    return on_meta([&] { return layers.make(layer); });
  } catch (const std::exception&) {
    return layers.make(layer);
  }
}

void require_ties(const LayerList& layers, const WholeModel& whole) {
  const auto find = [&](const std::string& name) -> const WholeModel::Tensor& {
    const auto found = whole.tensors.find(name);
    require(found != whole.tensors.end() && found->second.is_parameter,
            [&] { return "LayerList::tie: no layer has a parameter '" + name + "'"; });
    return found->second;
  };
  for (const auto& [parameter, same_as] : layers.ties()) {
    const std::string one = text_of(find(parameter)), other = text_of(find(same_as));
    require(one == other, [&, &parameter = parameter, &same_as = same_as] {
      return "LayerList::tie: '" + parameter + "' is " + one + ", but '" + same_as + "' is " +
             other;
    });
  }
}

void require_plans(const LayerList& layers, const WholeModel& whole) {
  for (const LayerList::Cut& cut : layers.cuts())
    for (const auto& entry : cut.plan)
      require(whole.has_module(entry.first), [&] {
        return "LayerList::parallelize: no layer has a module '" + entry.first + "'";
      });
}

}  // namespace

std::string WholeModel::lines() const {
  std::string lines;
  for (const auto& [name, tensor] : tensors) lines += name + " is " + text_of(tensor) + '\n';
  return lines;
}

bool WholeModel::has_module(const std::string& pattern) const {
  return std::ranges::any_of(modules, [&](const auto& of_layer) {
    return std::ranges::any_of(of_layer,
                               [&](const std::string& name) { return matches(pattern, name); });
  });
}

WholeModel survey(const LayerList& layers) {
  const KeptGenerator generator;
  WholeModel whole;
  std::map<std::string, std::size_t> owners;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    note(whole, i, layers.name(i), *make_to_look_at(layers, i).module);
    for (const std::string& module : whole.modules.back()) {
      const auto [owner, is_new] = owners.emplace(module, i);
      require(is_new, [&] {
        return "LayerList: layers '" + layers.name(owner->second) + "' and '" + layers.name(i) +
               "' both have a module '" + module + "'";
      });
    }
  }
  require_ties(layers, whole);
  require_plans(layers, whole);
  return whole;
}

}  // namespace lockstep::parallel
