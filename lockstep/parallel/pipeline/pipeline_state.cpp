// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/pipeline/pipeline_state.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/optim/optimizer_stateful.h"
#include "lockstep/parallel/replicate/distributed_data_parallel.h"
#include "lockstep/tensor/module_state.h"

namespace lockstep::parallel {
namespace {

std::string joined(const std::vector<std::string>& mismatches) {
  constexpr std::size_t most = 10;
  std::string text;
  for (std::size_t i = 0; i < std::min(most, mismatches.size()); ++i)
    text += "\n  " + mismatches[i];
  if (mismatches.size() > most)
    text += "\n  and " + std::to_string(mismatches.size() - most) + " more";
  return text;
}

// Errors: misuse, with all mismatches, unless `saved` has the tensors of the whole model.
void require_whole(const StateDict& saved, const WholeModel& whole,
                   const std::function<bool(const std::string&)>& is_saved) {
  std::vector<std::string> mismatches;
  for (const auto& [name, tensor] : whole.tensors) {
    if (!is_saved(name)) continue;
    const auto found = saved.tensors.find(name);
    if (found == saved.tensors.end())
      mismatches.push_back(name + " is missing");
    else if (found->second.shape != tensor.shape)
      mismatches.push_back(name + " has shape " + c10::str(at::IntArrayRef(found->second.shape)) +
                           ", here " + c10::str(at::IntArrayRef(tensor.shape)));
  }
  for (const auto& [name, tensor] : saved.tensors)
    if (!whole.tensors.contains(name)) mismatches.push_back(name + " is in no layer");
  require(mismatches.empty(), [&] {
    return "Pipeline: the saved model is not that of the layers:" + joined(mismatches);
  });
}

// Errors: misuse, with all mismatches, for unknown parameters or shapes. Optimizers may step only
// some parameters.
void require_of_whole(const StateDict& saved, const WholeModel& whole) {
  std::vector<std::string> mismatches;
  for (const auto& [name, tensor] : saved.tensors) {
    const auto parameter = whole.tensors.find(name.substr(0, name.rfind('.')));
    if (parameter == whole.tensors.end())
      mismatches.push_back(name + " is of no layer's parameter");
    else if (tensor.shape != parameter->second.shape)
      mismatches.push_back(name + " has shape " + c10::str(at::IntArrayRef(tensor.shape)) +
                           ", here " + c10::str(at::IntArrayRef(parameter->second.shape)));
  }
  require(mismatches.empty(), [&] {
    return "Pipeline: the saved optimizer is not one of the layers:" + joined(mismatches);
  });
}

// A part of a larger state, with other names.
class PartOfWhole : public Stateful {
 public:
  // `saved_names`: of `inner`, where different. `is_mine`: whether this rank has a saved name's
  // data.
  using IsMine = std::function<bool(const std::string& saved_name)>;
  using Check = std::function<void(const StateDict& saved)>;

  PartOfWhole(std::unique_ptr<Stateful> inner, std::map<std::string, std::string> saved_names,
              IsMine is_mine, Check require_fits)
      : inner_(std::move(inner)),
        is_mine_(std::move(is_mine)),
        require_fits_(std::move(require_fits)) {
    for (const auto& [own, saved] : saved_names)
      names_.emplace(own, saved), own_.emplace(saved, own);
  }

  // The rank of the original saves tied tensors, perhaps in other parts.
  StateDict state_dict() override {
    StateDict state = inner_->state_dict();
    const auto is_copy = [&](const auto& each) {
      return renamed(each.first, names_) != each.first;
    };
    std::erase_if(state.tensors, is_copy);
    std::erase_if(state.values, is_copy);
    return state;
  }

  StateRequest wanted(const StateDict& saved) override {
    require_fits_(saved);
    StateDict mine;
    for (const auto& [name, tensor] : saved.tensors)
      if (is_mine_(name)) mine.tensors.emplace(name, tensor);
    for (const auto& [name, value] : saved.values)
      if (is_mine_(name)) mine.values.emplace(name, value);
    StateRequest request;
    for (auto& [name, range] : inner_->wanted(renamed(std::move(mine), own_)))
      request.emplace(renamed(name, names_), std::move(range));
    return request;
  }

  void load_state_dict(StateDict state) override {
    // Has all values, even of other ranks' parameters.
    std::erase_if(state.values, [&](const auto& each) { return !is_mine_(each.first); });
    inner_->load_state_dict(renamed(std::move(state), own_));
  }

 private:
  using Names = std::map<std::string, std::string>;

  // Renames parameters, and names that append one level to a parameter's.
  static std::string renamed(const std::string& name, const Names& names) {
    if (const auto found = names.find(name); found != names.end()) return found->second;
    const std::size_t dot = name.rfind('.');
    if (dot == std::string::npos) return name;
    const auto found = names.find(name.substr(0, dot));
    return found == names.end() ? name : found->second + name.substr(dot);
  }

  static StateDict renamed(StateDict state, const Names& names) {
    StateDict result;
    for (auto& [name, tensor] : state.tensors)
      result.tensors.emplace(renamed(name, names), std::move(tensor));
    for (auto& [name, value] : state.values)
      result.values.emplace(renamed(name, names), std::move(value));
    return result;
  }

  const std::unique_ptr<Stateful> inner_;
  const IsMine is_mine_;
  const Check require_fits_;
  Names names_;  // By own names; and the inverse map.
  Names own_;
};

// Only those that differ.
std::map<std::string, std::string> saved_names(const RankStages& stages) {
  std::map<std::string, std::string> names;
  for (const auto& [name, parameter] : named_parameters(*stages.module()))
    if (const std::string& saved = stages.ties().saved_name(name); saved != name)
      names.emplace(name, saved);
  return names;
}

std::set<std::string> names_of(const NamedTensors& tensors) {
  std::set<std::string> names;
  for (const auto& [name, tensor] : tensors) names.insert(name);
  return names;
}

}  // namespace

NamedTensors saved_parameters(const RankStages& stages) {
  NamedTensors parameters = named_parameters(*stages.module());
  for (auto& [name, parameter] : parameters) name = stages.ties().saved_name(name);
  return parameters;
}

std::unique_ptr<Stateful> model_state(RankStages& stages) {
  std::set<std::string> mine = names_of(named_buffers(*stages.module()));
  mine.merge(names_of(saved_parameters(stages)));
  auto inner =
      stages.data_parallel() ? state_of(*stages.data_parallel()) : state_of(*stages.module());
  return std::make_unique<PartOfWhole>(
      std::move(inner), saved_names(stages),
      [mine = std::move(mine)](const std::string& name) { return mine.contains(name); },
      [&stages](const StateDict& saved) {
        require_whole(saved, stages.whole(),
                      [&](const std::string& name) { return stages.whole_saves(name); });
      });
}

std::unique_ptr<Stateful> optimizer_state(torch::optim::Optimizer& optimizer, RankStages& stages) {
  std::set<std::string> parameters = names_of(saved_parameters(stages));
  auto inner = lockstep::state_of(optimizer, named_parameters(*stages.module()),
                                  layouts_of(*stages.module()));
  return std::make_unique<PartOfWhole>(
      std::move(inner), saved_names(stages),
      [parameters = std::move(parameters), &stages](const std::string& name) {
        const std::string parameter = name.substr(0, name.rfind('.'));
        return parameters.contains(parameter) || !stages.whole().tensors.contains(parameter);
      },
      [&stages](const StateDict& saved) { require_of_whole(saved, stages.whole()); });
}

}  // namespace lockstep::parallel
