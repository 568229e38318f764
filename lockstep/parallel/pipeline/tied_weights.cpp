// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/pipeline/tied_weights.h"

#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/values.h"
#include "lockstep/tensor/buffers.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/name_pattern.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/tensor/sharded_module.h"

namespace lockstep::parallel {
namespace {

// Accesses the protected parameters of a module.
struct Registered : torch::nn::Module {
  static void erase(torch::nn::Module& module, const std::string& name) {
    (module.*(&Registered::parameters_)).erase(name);
  }
};

// It remains registered under the other name.
void unregister(torch::nn::Module& root, const std::string& parameter) {
  const std::size_t dot = parameter.rfind('.');
  for (const auto& module : root.named_modules("", /*include_self=*/false))
    if (module.key() == parameter.substr(0, dot))
      return Registered::erase(*module.value(), parameter.substr(dot + 1));
}

void make_one(const at::Tensor& alias, const at::Tensor& original) {
  at::Tensor(alias).requires_grad_(false);
  at::Tensor(alias).set_data(original);
  if (original.requires_grad())
    torch::autograd::impl::set_gradient_edge(alias, torch::autograd::impl::gradient_edge(original));
}

// The plan's entry that cuts this parameter's module.
std::string entry_of(const LayerList& layers, const std::string& parameter) {
  const std::string module = parameter.substr(0, parameter.rfind('.'));
  for (const LayerList::Cut& cut : layers.cuts())
    for (const auto& entry : cut.plan)
      if (matches(entry.first, module)) return entry.first;
  return {};
}

// Such as "[11, 3], on rank 1 of 2: [0, 3] + [11, 3] of [11, 6], joined along dim 0".
std::string part_text(const at::Tensor& parameter, const Layouts& layouts,
                      const std::string& name) {
  std::ostringstream text;
  text << parameter.sizes();
  if (const auto found = layouts.find(name); found != layouts.end()) {
    const ParameterLayout& layout = found->second;
    text << ", on rank " << layout.group.rank() << " of " << layout.group.size() << ':';
    for (const Box& box : layout.boxes.list)
      text << ' ' << at::IntArrayRef(box.offsets) << " + " << at::IntArrayRef(box.sizes);
    text << " of " << at::IntArrayRef(layout.shape) << ", joined along dim "
         << layout.boxes.cat_dim;
  }
  return text.str();
}

// For one rank's stages: the last backward that computes gradients of weights.
PipelineAction last_backward(const PipelineOrder& order, const std::set<int>& stages) {
  PipelineAction last;
  const int rank = order.rank_of_stage.at(static_cast<std::size_t>(*stages.begin()));
  for (const PipelineAction& action : order.actions.at(static_cast<std::size_t>(rank)))
    if (stages.contains(action.stage) && (action.kind == PipelineActionKind::backward ||
                                          action.kind == PipelineActionKind::backward_weight))
      last = action;
  return last;
}

}  // namespace

void require_equal_parts(const LayerList& layers, const torch::nn::Module& module,
                         const ProcessGroup& group) {
  if (layers.ties().empty()) return;
  const Layouts layouts = layouts_of(module);
  std::string lines;
  for (const auto& [name, parameter] : named_parameters(module))
    lines += name + '\n' + part_text(parameter, layouts, name) + '\n';
  std::map<std::string, std::string> parts;
  for (const std::string& theirs : all_gather_bytes(lines, group, {.label = "tied weights"})) {
    std::istringstream in(theirs);
    for (std::string name, part; std::getline(in, name) && std::getline(in, part);)
      parts.emplace(name, part);
  }
  const auto text_of = [&](const std::string& name) {
    const std::string entry = entry_of(layers, name);
    return "'" + name + "' is " + parts.at(name) +
           (entry.empty() ? ", which no plan names" : ", by the plan's '" + entry + "'");
  };
  for (const auto& tie : layers.ties())
    require(parts.at(tie.parameter) == parts.at(tie.same_as), [&] {
      return "LayerList::tie: tied weights are cut alike or not at all, but " +
             text_of(tie.parameter) + ", and " + text_of(tie.same_as);
    });
}

TiedWeights::TiedWeights(const std::vector<LayerList::Tie>& ties, const Stages& stages,
                         const PipelineOrder& order, torch::nn::Module& module,
                         const ProcessGroup& group) {
  const auto rank_of = [&](const std::string& name) {
    return order.rank_of_stage.at(static_cast<std::size_t>(stages.at(name)));
  };
  std::map<std::string, std::vector<std::string>> names;  // The saved name first.
  for (const LayerList::Tie& tie : ties) {
    auto& all = names[tie.same_as];
    if (all.empty()) all.push_back(tie.same_as);
    all.push_back(tie.parameter);
  }
  std::map<std::string, at::Tensor> parameters;
  for (const auto& [name, parameter] : named_parameters(module)) parameters[name] = parameter;

  for (const auto& [saved, all] : names) {
    std::set<int> holders, own_stages;
    std::string mine;
    for (const std::string& name : all) {
      holders.insert(rank_of(name));
      if (rank_of(name) != group.rank()) continue;
      own_stages.insert(stages.at(name));
      if (mine.empty()) {
        mine = name;
        continue;
      }
      make_one(parameters.at(name), parameters.at(mine));
      aliases_.emplace_back(parameters.at(name), parameters.at(mine));
      unregister(module, name);
    }
    if (holders.size() == 1) continue;
    const std::vector<int> list(holders.begin(), holders.end());
    const auto sharing = group.new_group(list);
    if (!sharing) continue;
    const at::Tensor& parameter = parameters.at(mine);
    const auto root = std::ranges::find(list, rank_of(saved)) - list.begin();
    const at::NoGradGuard no_grad;
    broadcast(parameter, *sharing, static_cast<int>(root));
    across_.push_back(
        {.name = saved,
         .parameter = parameter,
         .group = *sharing,
         .last = last_backward(order, own_stages),
         .sum = SparseSum::suits(*sharing) ? std::make_unique<SparseSum>(*sharing) : nullptr});
    if (mine != saved) copies_[mine] = saved;
  }
}

void TiedWeights::follow_memory() {
  for (const auto& [alias, original] : aliases_) {
    at::Tensor(alias).set_data(original);
  }
}

void TiedWeights::begin_step() {
  for (Across& each : across_) {
    each.earlier = std::exchange(each.parameter.mutable_grad(), at::Tensor());
    if (each.sum) each.sum->begin();
  }
}

void TiedWeights::after(const PipelineAction& action) {
  for (Across& each : across_)
    if (action == each.last) complete(each);
}

// Also for frozen weights: ranks may freeze theirs at different times.
void TiedWeights::complete(Across& each) {
  const at::NoGradGuard no_grad;
  const at::Tensor gradient = std::exchange(each.parameter.mutable_grad(), {});
  each.gradient = gradient.defined() ? gradient : at::zeros_like(each.parameter);
  if (!each.sum) return;
  naming_errors(each.name, [&] {
    require_dense(each.gradient, "the gradient of a tied weight");
    each.gradient = values_of(each.gradient);
    each.sum->send(each.gradient);
  });
}

void TiedWeights::add_gradients() {
  const at::NoGradGuard no_grad;
  for (Across& each : across_) {
    at::Tensor gradient = std::exchange(each.gradient, {});
    if (each.sum)
      naming_errors(each.name, [&] { each.sum->finish(); });
    else
      all_reduce(gradient, each.group, ReduceOp::sum, {.label = each.name});
    const at::Tensor earlier = std::exchange(each.earlier, {});
    if (earlier.defined()) gradient.add_(earlier);
    each.parameter.mutable_grad() = each.parameter.requires_grad() ? gradient : earlier;
  }
}

void TiedWeights::abort(const std::string& reason) {
  for (const Across& each : across_) each.group.abort(reason);
}

const std::string& TiedWeights::saved_name(const std::string& name) const {
  const auto found = copies_.find(name);
  return found == copies_.end() ? name : found->second;
}

}  // namespace lockstep::parallel
