// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/pipeline/tied_weights.h"

#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep::parallel {
namespace {

// The registered parameters of a module, which it protects.
struct Registered : torch::nn::Module {
  static void erase(torch::nn::Module& module, const std::string& name) {
    (module.*(&Registered::parameters_)).erase(name);
  }
};

// The module's parameter is no longer registered: the one it is one with is.
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

}  // namespace

TiedWeights::TiedWeights(const std::vector<LayerList::Tie>& ties, const Ranks& ranks,
                         torch::nn::Module& module, const ProcessGroup& group) {
  std::map<std::string, std::vector<std::string>> names;  // The saved one first.
  for (const LayerList::Tie& tie : ties) {
    auto& all = names[tie.same_as];
    if (all.empty()) all.push_back(tie.same_as);
    all.push_back(tie.parameter);
  }
  std::map<std::string, at::Tensor> parameters;
  for (const auto& [name, parameter] : named_parameters(module)) parameters[name] = parameter;

  for (const auto& [saved, all] : names) {
    std::set<int> holders;
    std::string mine;
    for (const std::string& name : all) {
      holders.insert(ranks.at(name));
      if (ranks.at(name) != group.rank()) continue;
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
    const auto root = std::ranges::find(list, ranks.at(saved)) - list.begin();
    const at::NoGradGuard no_grad;
    broadcast(parameter, *sharing, static_cast<int>(root));
    across_.push_back({saved, parameter, *sharing});
    if (mine != saved) copies_[mine] = saved;
  }
}

void TiedWeights::follow_memory() {
  for (const auto& [alias, original] : aliases_) {
    at::Tensor(alias).set_data(original);
  }
}

void TiedWeights::begin_step() {
  for (Across& each : across_)
    each.earlier = std::exchange(each.parameter.mutable_grad(), at::Tensor());
}

void TiedWeights::add_gradients() {
  const at::NoGradGuard no_grad;
  for (Across& each : across_) {
    if (!each.parameter.requires_grad()) continue;
    at::Tensor& gradient = each.parameter.mutable_grad();
    if (!gradient.defined()) gradient = at::zeros_like(each.parameter);
    all_reduce(gradient, each.group, ReduceOp::sum, {.label = each.name});
    if (const at::Tensor earlier = std::exchange(each.earlier, {}); earlier.defined())
      gradient.add_(earlier);
  }
}

const std::string& TiedWeights::saved_name(const std::string& name) const {
  const auto found = copies_.find(name);
  return found == copies_.end() ? name : found->second;
}

}  // namespace lockstep::parallel
