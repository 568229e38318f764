// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/pipeline/layer_list.h"

#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/time.h"
#include "lockstep/tensor/generator_states.h"

namespace lockstep {

void LayerList::add_layer(std::string name, std::function<pipeline::Layer()> make) {
  const auto begins = [](const std::string& text, const std::string& with) {
    return text == with || text.starts_with(with + ".");
  };
  require(!name.empty() && name.front() != '.' && name.back() != '.' &&
              name.find("..") == std::string::npos,
          [&] { return "LayerList: '" + name + "' is not the name of a layer"; });
  for (const Entry& other : layers_)
    require(!begins(other.name, name), [&] {
      return "LayerList: there is a layer '" + other.name + "' already, so there cannot be '" +
             name + "'";
    });
  layers_.push_back({std::move(name), std::move(make)});
}

void LayerList::tie(std::string parameter, std::string same_as) {
  for (const Tie& other : ties_) {
    require(other.parameter != parameter && other.same_as != parameter, [&] {
      return "LayerList: '" + parameter + "' is tied already; name '" + other.same_as +
             "' as the second argument of further ties";
    });
    require(other.parameter != same_as, [&] {
      return "LayerList: '" + same_as + "' is tied to '" + other.same_as + "': name that instead";
    });
  }
  require(parameter != same_as,
          [&] { return "LayerList: '" + parameter + "' cannot be tied to itself"; });
  ties_.push_back({std::move(parameter), std::move(same_as)});
}

void LayerList::parallelize(const ProcessGroup& group, ParallelPlan plan,
                            const ParallelizeOptions& options) {
  cuts_.push_back({group, std::move(plan), options});
}

pipeline::Layer LayerList::make(std::size_t layer) const {
  const Entry& entry = layers_.at(layer);
  pipeline::Layer made = entry.make();
  require(made.module != nullptr,
          [&] { return "LayerList: the function of layer '" + entry.name + "' returned nothing"; });
  return made;
}

std::vector<double> measure_layers(const LayerList& layers, const at::Tensor& example) {
  constexpr int repetitions = 3;
  const KeptGenerator generator;
  std::vector<double> costs;
  auto value = pipeline::pack(example);
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const pipeline::Layer layer = layers.make(i);
    std::vector<double> seconds;
    pipeline::PassedValue output;
    for (int repetition = 0; repetition <= repetitions; ++repetition) {
      for (at::Tensor& tensor : value.tensors)
        tensor = tensor.detach().requires_grad_(tensor.is_floating_point() && i > 0);
      const auto begin = Clock::now();
      output = layer.forward(value);
      std::vector<at::Tensor> roots, gradients;
      for (const at::Tensor& tensor : output.tensors)
        if (tensor.requires_grad()) {
          roots.push_back(tensor);
          gradients.push_back(at::ones_like(tensor));
        }
      if (!roots.empty()) torch::autograd::backward(roots, gradients);
      // The first time is that of a cold cache and of memory that is not there yet.
      if (repetition > 0)
        seconds.push_back(std::chrono::duration<double>(Clock::now() - begin).count());
      layer.module->zero_grad();
    }
    std::ranges::sort(seconds);
    costs.push_back(seconds[seconds.size() / 2]);
    value = output;
  }
  return costs;
}

}  // namespace lockstep
