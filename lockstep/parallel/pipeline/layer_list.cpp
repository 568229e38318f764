// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/pipeline/layer_list.h"

#include <utility>

#include "lockstep/base/error.h"

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

}  // namespace lockstep
