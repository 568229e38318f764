// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/prune/pruning_masks.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/ones_like.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/differences.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/toolkit/prune/mask_methods.h"
#include "lockstep/toolkit/prune/module_cut.h"
#include "lockstep/toolkit/prune/own_parameters.h"

namespace lockstep {
namespace {

std::map<std::string, at::Tensor> own_parameters_of(const torch::nn::Module& model) {
  prune::require_own_parameters(model, "PruningMasks", ", which would all write to it",
                                ": rank 0's mask would not fit the others' parts");
  const NamedTensors parameters = named_parameters(model);
  return {parameters.begin(), parameters.end()};
}

std::map<std::string, std::string> first_names(const torch::nn::Module& model) {
  std::map<const at::TensorImpl*, std::string> first;
  std::map<std::string, std::string> names;
  for (const auto& [name, parameter] : named_parameters(model))
    names.emplace(name, first.emplace(parameter.unsafeGetTensorImpl(), name).first->second);
  return names;
}

}  // namespace

std::int64_t PruningAmount::of(std::int64_t all) const {
  if (const auto* const share = std::get_if<double>(&amount_)) {
    require(*share >= 0 && *share <= 1, [&] {
      std::string text = "PruningMasks: a share is not in the range from 0 to 1: ";
      text += std::to_string(*share);
      return text;
    });
    return static_cast<std::int64_t>(std::nearbyint(*share * static_cast<double>(all)));
  }
  const std::int64_t count = std::get<std::int64_t>(amount_);
  require(count >= 0 && count <= all, [&] {
    std::string text = "PruningMasks: there are not so many to prune: ";
    text += std::to_string(count);
    text += " of ";
    text += std::to_string(all);
    return text;
  });
  return count;
}

PruningMasks::PruningMasks(torch::nn::Module& model, const ProcessGroup& group)
    : parameters_(own_parameters_of(model)), first_names_(first_names(model)), group_(group) {}

// --- Masks ---------------------------------------------------------------------------------------

const std::string& PruningMasks::first_name_of(const std::string& name) const {
  const auto found = first_names_.find(name);
  require(found != first_names_.end(),
          [&] { return "PruningMasks: the model has no parameter " + name; });
  return found->second;
}

at::Tensor PruningMasks::parameter_of(const std::string& name) const {
  return parameters_.at(first_name_of(name)).detach();
}

at::Tensor PruningMasks::mask(const std::string& parameter) const {
  const auto found = masks_.find(first_name_of(parameter));
  return found == masks_.end() ? at::Tensor() : found->second;
}

at::Tensor PruningMasks::mask_or_ones(const std::string& name) const {
  const at::Tensor values = parameter_of(name);
  const at::Tensor known = mask(name);
  return known.defined() ? known.to(values.scalar_type())
                         : at::ones_like(values, at::MemoryFormat::Contiguous);
}

void PruningMasks::set(const std::string& name, at::Tensor mask) {
  mask = mask.ne(0).contiguous();
  if (group_.size() > 1) broadcast(mask, group_, 0, {.label = "PruningMasks"});
  const at::NoGradGuard no_grad;
  parameter_of(name).mul_(mask);
  masks_[first_name_of(name)] = std::move(mask);
}

void PruningMasks::prune(const std::string& name, const Method& method) {
  const at::NoGradGuard no_grad;
  set(name, method(parameter_of(name).contiguous(), mask_or_ones(name)));
}

void PruningMasks::l1_unstructured(const std::string& parameter, PruningAmount amount) {
  prune(parameter, [&](const at::Tensor& values, const at::Tensor& mask) {
    return prune::l1_mask(values, mask, amount);
  });
}

void PruningMasks::random_unstructured(const std::string& parameter, PruningAmount amount) {
  prune(parameter, [&](const at::Tensor& values, const at::Tensor& mask) {
    return prune::random_mask(values, mask, amount);
  });
}

void PruningMasks::ln_structured(const std::string& parameter, PruningAmount amount, double norm,
                                 std::int64_t dim) {
  prune(parameter, [&](const at::Tensor& values, const at::Tensor& mask) {
    return prune::ln_mask(values, mask, amount, norm, dim);
  });
}

void PruningMasks::random_structured(const std::string& parameter, PruningAmount amount,
                                     std::int64_t dim) {
  prune(parameter, [&](const at::Tensor& values, const at::Tensor& mask) {
    return prune::random_slices_mask(values, mask, amount, dim);
  });
}

void PruningMasks::custom_from_mask(const std::string& parameter, const at::Tensor& mask) {
  prune(parameter, [&](const at::Tensor& values, const at::Tensor& before) {
    require(mask.sizes() == values.sizes(),
            [&] { return "PruningMasks: the mask of " + parameter + " has another shape"; });
    return before * mask.to(before.scalar_type());
  });
}

void PruningMasks::global_l1_unstructured(const std::vector<std::string>& parameters,
                                          PruningAmount amount) {
  require(!parameters.empty(), "PruningMasks: no parameters to prune");
  const at::NoGradGuard no_grad;
  std::vector<std::string> names;  // Each parameter once.
  for (const std::string& parameter : parameters)
    if (const std::string& name = first_name_of(parameter);
        std::find(names.begin(), names.end(), name) == names.end())
      names.push_back(name);
  std::vector<at::Tensor> values, masks;
  for (const std::string& name : names) {
    values.push_back(parameter_of(name).reshape(-1));
    masks.push_back(mask_or_ones(name).reshape(-1));
  }
  const at::Tensor all = prune::l1_mask(at::cat(values), at::cat(masks), amount);
  std::int64_t begin = 0;
  for (const std::string& name : names) {
    const at::Tensor parameter = parameter_of(name);
    set(name, all.slice(0, begin, begin + parameter.numel()).view(parameter.sizes()));
    begin += parameter.numel();
  }
}

void PruningMasks::remove(const std::string& parameter) {
  require(mask(parameter).defined(),
          [&] { return "PruningMasks: " + parameter + " has no mask to remove"; });
  masks_.erase(first_name_of(parameter));
}

// --- Use -----------------------------------------------------------------------------------------

void PruningMasks::apply() {
  const at::NoGradGuard no_grad;
  for (const auto& [name, mask] : masks_) parameter_of(name).mul_(mask);
}

void PruningMasks::apply(torch::optim::Optimizer& optimizer) {
  prune::require_readable_state(optimizer);
  apply();
  const at::NoGradGuard no_grad;
  for (const auto& [name, mask] : masks_) {
    const auto slot = optimizer.state().find(parameters_.at(name).unsafeGetTensorImpl());
    if (slot == optimizer.state().end() || !slot->second) continue;
    for (const auto& [part, value] : parts_of(*slot->second).tensors)
      if (value->defined() && value->sizes() == mask.sizes()) value->mul_(mask);
  }
}

double PruningMasks::sparsity() const {
  std::int64_t zeros = 0, all = 0;
  for (const auto& [name, mask] : masks_) {
    zeros += mask.numel() - mask.sum().item<std::int64_t>();
    all += mask.numel();
  }
  return all == 0 ? 0 : static_cast<double>(zeros) / static_cast<double>(all);
}

// --- State ---------------------------------------------------------------------------------------

StateDict PruningMasks::state_dict() {
  StateDict state;
  state.values.emplace("masks", static_cast<std::int64_t>(masks_.size()));
  for (const auto& [name, mask] : masks_) state.tensors.emplace(name, whole(mask));
  return state;
}

StateRequest PruningMasks::wanted(const StateDict& saved) {
  value_of<std::int64_t>(saved, "masks");
  Mismatches mismatches;
  for (const auto& [name, tensor] : saved.tensors) {
    const auto own = parameters_.find(name);
    if (own == parameters_.end())
      mismatches.add("the mask of " + name + " was saved and is unknown");
    else
      mismatches.find(saved, name, at::kBool, own->second.sizes());
  }
  mismatches.require_none("the saved masks are not of this model");
  return everything(saved);
}

void PruningMasks::load_state_dict(StateDict state) {
  masks_.clear();
  for (auto& [name, tensor] : state.tensors)
    masks_.emplace(first_name_of(name), tensor.data.to(parameters_.at(name).device()));
  apply();
}

}  // namespace lockstep
