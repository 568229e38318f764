// SPDX-License-Identifier: Apache-2.0
#include <ATen/core/Tensor.h>

#include <cmath>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/parallel/local_steps/local_steps.h"

namespace lockstep {
namespace {

constexpr const char* synced_prefix = "synced.";
constexpr const char* momentum_prefix = "momentum.";

std::string text_of(const DiLoCoOptions& options) {
  std::ostringstream text;
  text.precision(17);
  text << "sync_every " << options.sync_every << "\nfragments " << options.fragments
       << "\nouter_lr " << options.outer_lr << "\nouter_momentum " << options.outer_momentum
       << "\nnesterov " << std::boolalpha << options.nesterov;
  return text.str();
}

const DiLoCoOptions& require_valid(const DiLoCoOptions& options) {
  require(options.sync_every >= 1, "DiLoCo: sync_every must be at least 1");
  require(options.fragments >= 1, "DiLoCo: fragments must be at least 1");
  require(options.sync_every % options.fragments == 0, [&] {
    std::string text = "DiLoCo: sync_every, ";
    return text.append(std::to_string(options.sync_every))
        .append(", is not a multiple of the ")
        .append(std::to_string(options.fragments))
        .append(" fragments");
  });
  require(std::isfinite(options.outer_lr) && options.outer_lr > 0,
          "DiLoCo: outer_lr must be positive");
  require(options.outer_momentum >= 0 && options.outer_momentum < 1,
          "DiLoCo: outer_momentum must be in [0, 1)");
  require(options.outer_momentum > 0 || !options.nesterov,
          "DiLoCo: nesterov needs an outer_momentum");
  return options;
}

// Fragments end at shares of all bytes; none is empty.
std::vector<std::size_t> fragment_ends(const NamedTensors& parameters, std::int64_t fragments) {
  const auto count = static_cast<std::size_t>(fragments);
  require(count <= parameters.size(), [&] {
    std::string text = "DiLoCo: the module has only ";
    return text.append(std::to_string(parameters.size()))
        .append(" parameters for ")
        .append(std::to_string(count))
        .append(" fragments");
  });
  double total = 0;
  for (const auto& [name, parameter] : parameters) total += static_cast<double>(parameter.nbytes());
  std::vector<std::size_t> ends;
  double bytes = 0;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    bytes += static_cast<double>(parameters[i].second.nbytes());
    const std::size_t left = parameters.size() - i - 1;
    const auto share = static_cast<double>(ends.size() + 1) / static_cast<double>(count);
    if (bytes >= total * share || left < count - ends.size()) ends.push_back(i + 1);
  }
  ends.back() = parameters.size();
  return ends;
}

}  // namespace

DiLoCo::DiLoCo(torch::nn::Module& module, torch::optim::Optimizer& inner, const ProcessGroup& group,
               const DiLoCoOptions& options)
    : LocalSteps(module, inner, group, "DiLoCo", text_of(require_valid(options))),
      options_(options),
      ends_(fragment_ends(parameters(), options.fragments)),
      momentum_(parameters().size()) {
  for (const auto& [name, parameter] : parameters()) synced_.push_back(parameter.detach().clone());
}

LocalSteps::Range DiLoCo::due_after(std::int64_t step) const {
  const std::int64_t interval = options_.sync_every / options_.fragments;
  if ((step + 1) % interval != 0) return {};
  const auto fragment = static_cast<std::size_t>(step / interval % options_.fragments);
  return {.begin = fragment == 0 ? 0 : ends_[fragment - 1], .end = ends_[fragment]};
}

// The outer gradient.
at::Tensor DiLoCo::contribution(std::size_t index) const {
  return synced_[index].sub(parameters()[index].second.detach());
}

// torch.optim.SGD's formulas.
void DiLoCo::take_mean(std::size_t index, const at::Tensor& mean) {
  at::Tensor step = mean;
  if (options_.outer_momentum > 0) {
    at::Tensor& momentum = momentum_[index];
    if (momentum.defined())
      momentum.mul_(options_.outer_momentum).add_(mean);
    else
      momentum = mean.clone();
    step = options_.nesterov ? mean.add(momentum, options_.outer_momentum) : momentum;
  }
  synced_[index].sub_(step, options_.outer_lr);
  parameters()[index].second.detach().copy_(synced_[index]);
}

StateDict DiLoCo::state_dict() {
  StateDict state = LocalSteps::state_dict();
  for (std::size_t i = 0; i < synced_.size(); ++i) {
    const std::string& name = parameters()[i].first;
    state.tensors.emplace(synced_prefix + name, whole(synced_[i]));
    if (momentum_[i].defined()) state.tensors.emplace(momentum_prefix + name, whole(momentum_[i]));
  }
  return state;
}

StateRequest DiLoCo::wanted(const StateDict& saved) {
  StateRequest request = LocalSteps::wanted(saved);
  StateRequest all = everything(saved);
  for (const auto& [name, parameter] : parameters())
    for (const char* prefix : {synced_prefix, momentum_prefix}) {
      const auto found = saved.tensors.find(prefix + name);
      if (found == saved.tensors.end()) {
        require(prefix == momentum_prefix,
                [&, &name = name] { return "DiLoCo: the state has no parameter " + name; });
        continue;
      }
      require(found->second.shape == parameter.sizes(), [&, &name = name] {
        return "DiLoCo: parameter " + name + " was saved with another shape";
      });
      request.insert(all.extract(found->first));
    }
  return request;
}

void DiLoCo::load_state_dict(StateDict state) {
  for (std::size_t i = 0; i < synced_.size(); ++i) {
    const std::string& name = parameters()[i].first;
    synced_[i].copy_(state.tensors.at(synced_prefix + name).data);
    const auto momentum = state.tensors.find(momentum_prefix + name);
    momentum_[i] = momentum == state.tensors.end()
                       ? at::Tensor()
                       : at::empty_like(synced_[i]).copy_(momentum->second.data);
  }
  LocalSteps::load_state_dict(std::move(state));
}

}  // namespace lockstep
