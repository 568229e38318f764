// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/lora/lora.h"

#include <torch/nn/modules/container/any.h>

#include <algorithm>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/nn/exchange.h"
#include "lockstep/nn/layers.h"
#include "lockstep/tensor/differences.h"
#include "lockstep/tensor/distinct_tensors.h"
#include "lockstep/tensor/name_pattern.h"
#include "lockstep/tensor/one_rank_edit.h"
#include "lockstep/tensor/tensor_memory.h"
#include "lockstep/toolkit/lora/lora_adapter.h"

namespace lockstep {
namespace {

using torch::nn::AnyModule;
using torch::nn::Module;

void require_options(const LoraOptions& options) {
  require(options.rank > 0 && options.alpha > 0, "Lora: rank and alpha are positive");
  require(options.dropout >= 0 && options.dropout < 1, "Lora: dropout is in [0, 1)");
}

// Complete before any change.
class Choice {
 public:
  Choice(Module& model, const std::vector<std::string>& patterns) : unused_(patterns) {
    walk(model, "", patterns);
    for (const std::string& pattern : unused_)
      refusals_ += "\n  '" + pattern + "': no layer has such a name";
    require(refusals_.empty(),
            [this] { return "Lora: nothing was changed, because of" + refusals_; });
  }

  std::map<std::string, std::shared_ptr<nn::LinearImpl>> apply() const {
    for (const nn::Exchange& exchange : exchanges_) exchange.apply();
    return layers_;
  }

 private:
  void walk(Module& owner, const std::string& prefix, const std::vector<std::string>& patterns) {
    for (const auto& child : owner.named_children()) {
      const std::string name = prefix + child.key();
      bool chosen = false;
      for (const std::string& pattern : patterns) {
        if (!matches(pattern, name)) continue;
        chosen = true;
        std::erase(unused_, pattern);
      }
      if (chosen && seen_.insert(child.value().get()).second)
        add(name, owner, child.key(), child.value());
      walk(*child.value(), name + '.', patterns);
    }
  }

  void refuse(const std::string& name, const std::string& why) {
    refusals_ += "\n  " + name + ": " + why;
  }

  void add(const std::string& name, Module& owner, const std::string& key,
           const std::shared_ptr<Module>& module) {
    auto layer = std::dynamic_pointer_cast<nn::LinearImpl>(module);
    if (!layer) {
      AnyModule ours = nn::exchanged(*module);
      if (!ours.is_empty()) layer = std::dynamic_pointer_cast<nn::LinearImpl>(ours.ptr());
      if (!layer) return refuse(name, "it is a " + module->name() + " and no Linear");
      auto exchange = nn::Exchange::of(owner, key, std::move(ours));
      if (!exchange)
        return refuse(name, "it is a torch::nn::Linear: declare it as lockstep::nn::Linear");
      exchanges_.push_back(std::move(*exchange));
    }
    if (layer->cut()) return refuse(name, "it is cut over ranks");
    if (layer->adapter()) return refuse(name, "it has an adapter already");
    if (lies_in_shared_block(layer->weight)) return refuse(name, "ranks share its weight");
    layers_.emplace(name, std::move(layer));
  }

  std::vector<std::string> unused_;
  std::set<const Module*> seen_;
  std::map<std::string, std::shared_ptr<nn::LinearImpl>> layers_;
  std::vector<nn::Exchange> exchanges_;
  std::string refusals_;
};

bool belongs_to(const std::string& parameter, const std::vector<std::string>& patterns) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
    return matching_parent(pattern, parameter).has_value();
  });
}

}  // namespace

Lora::Lora(Module& model, const std::vector<std::string>& layers, const LoraOptions& options) {
  require_options(options);
  require_values(named_tensors(model), "Lora");
  for (const std::string& pattern : options.also_train) {
    const auto all = lockstep::named_parameters(model);
    require(std::any_of(all.begin(), all.end(),
                        [&](const auto& item) { return belongs_to(item.first, {pattern}); }),
            [&] { return "Lora: no layer has the name " + pattern; });
  }
  for (const auto& [name, layer] : Choice(model, layers).apply()) {
    auto adapter = std::make_shared<lora::LoraAdapter>(layer->options, layer->weight, options);
    layer->adapt(adapter);
    layers_.emplace(name, AdaptedLayer{layer, std::move(adapter)});
  }
  for (const auto& [name, parameter] : distinct(lockstep::named_parameters(model))) {
    const bool trains = is_of_adapter(parameter) || belongs_to(name, options.also_train);
    parameter.set_requires_grad(trains);
    if (trains) parameters_.emplace_back(name, parameter);
  }
}

std::vector<at::Tensor> Lora::parameters() const {
  std::vector<at::Tensor> parameters;
  for (const auto& [name, parameter] : parameters_) parameters.push_back(parameter);
  return parameters;
}

bool Lora::is_of_adapter(const at::Tensor& parameter) const {
  for (const auto& [name, adapted] : layers_)
    for (const auto& [key, matrix] : adapted.adapter->matrices())
      if (matrix->weight.is_same(parameter)) return true;
  return false;
}

void Lora::require_own_weights(const char* call) const {
  require(!OneRankEdit::is_running(), [&] {
    return std::string("Lora: ") + call +
           ": edit_parameters() runs on rank 0 alone, and this is for all ranks to call: end "
           "DistributedDataParallel first";
  });
  for (const auto& [name, adapted] : layers_)
    require(!lies_in_shared_block(adapted.layer->weight), [&, &name = name] {
      return std::string("Lora: ") + call + ": the weight of " + name +
             " is shared by all ranks, which would all write to it: end DistributedDataParallel "
             "first, and give each rank a copy with set_data(clone())";
    });
}

void Lora::merge() {
  if (is_merged_) return;
  require_own_weights("merge()");
  for (const auto& [name, adapted] : layers_) {
    adapted.layer->weight.detach().add_(adapted.adapter->delta());
    adapted.layer->adapt(nullptr);
  }
  is_merged_ = true;
}

void Lora::unmerge() {
  if (!is_merged_) return;
  require_own_weights("unmerge()");
  for (const auto& [name, adapted] : layers_)
    require(!adapted.layer->adapter(), [&, &name = name] {
      return "Lora: unmerge(): " + name + " has another adapter by now";
    });
  for (const auto& [name, adapted] : layers_) {
    adapted.layer->weight.detach().sub_(adapted.adapter->delta());
    adapted.layer->adapt(adapted.adapter);
  }
  is_merged_ = false;
}

void Lora::remove() {
  merge();
  std::erase_if(parameters_, [this](const auto& item) { return is_of_adapter(item.second); });
  layers_.clear();
  is_merged_ = false;
}

void Lora::require_separate(const char* call) const {
  require(!is_merged_, [&] {
    return std::string("Lora: ") + call + ": the adapters are merged: call unmerge() first";
  });
}

StateDict Lora::state_dict() {
  require_separate("state_dict()");
  StateDict state;
  for (const auto& [name, parameter] : parameters_) state.tensors.emplace(name, whole(parameter));
  return state;
}

StateRequest Lora::wanted(const StateDict& saved) {
  require_separate("wanted()");
  Mismatches mismatches;
  std::set<std::string> known;
  for (const auto& [name, parameter] : parameters_) {
    known.insert(name);
    mismatches.find(saved, name, parameter.scalar_type(), parameter.sizes());
  }
  for (const auto& [name, tensor] : saved.tensors)
    if (!known.contains(name)) mismatches.add(name + " was saved and does not train here");
  mismatches.require_none("Lora: the saved adapters are not those of this model");
  return everything(saved);
}

void Lora::load_state_dict(StateDict state) {
  for (const auto& [name, parameter] : parameters_)
    parameter.detach().copy_(state.tensors.at(name).data);
}

}  // namespace lockstep
