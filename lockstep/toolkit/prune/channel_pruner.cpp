// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/prune/channel_pruner.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <memory>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/checkpoint_reader.h"
#include "lockstep/checkpoint/checkpointer.h"
#include "lockstep/tensor/differences.h"
#include "lockstep/tensor/name_pattern.h"
#include "lockstep/tensor/named_tensors.h"
#include "lockstep/toolkit/prune/channel_plan.h"
#include "lockstep/toolkit/prune/module_cut.h"
#include "lockstep/toolkit/prune/own_parameters.h"
#include "lockstep/toolkit/prune/traced_model.h"

namespace lockstep {
namespace {

using prune::ModuleCut;
using prune::PlannedCuts;

// --- Requirements --------------------------------------------------------------------------------

void require_prunable(const torch::nn::Module& model) {
  prune::require_own_parameters(
      model, "ChannelPruner",
      ": prune before DistributedDataParallel with share_parameters is made",
      ": prune before parallelize_module()");
}

void require_sparsity(double sparsity) {
  require(sparsity >= 0 && sparsity < 1, [&] {
    std::string text = "ChannelPruner: each layer keeps a channel, so a sparsity is in [0, 1): ";
    text += std::to_string(sparsity);
    return text;
  });
}

// Also for whole layers: these gradients belong to the unpruned model.
void forget_gradients(const torch::nn::Module& model) {
  for (at::Tensor& parameter : model.parameters()) parameter.mutable_grad().reset();
}

// Otherwise this model's optimizer would keep its moments' sizes.
void require_of_model(const torch::optim::Optimizer& optimizer, const torch::nn::Module& model) {
  std::set<const at::TensorImpl*> own;
  for (const at::Tensor& parameter : model.parameters())
    own.insert(parameter.unsafeGetTensorImpl());
  const auto is_own = [&](const at::Tensor& parameter) {
    return own.contains(parameter.unsafeGetTensorImpl());
  };
  const auto& groups = optimizer.param_groups();
  require(std::any_of(groups.begin(), groups.end(),
                      [&](const auto& group) {
                        return std::any_of(group.params().begin(), group.params().end(), is_own);
                      }),
          "ChannelPruner: apply() got an optimizer that has no parameter of this model");
}

bool names(const std::string& pattern, const std::string& layer) {
  return matches(pattern, layer) || matching_parent(pattern, layer).has_value();
}

}  // namespace

ChannelPruner::ChannelPruner(torch::nn::Module& model, Forward forward, const ProcessGroup& group,
                             const ChannelPrunerOptions& options, Private)
    : model_(model), forward_(std::move(forward)), group_(group), options_(options) {
  require_sparsity(options.sparsity);
  require(options.round_to > 0, "ChannelPruner: round_to is not positive");
  require_prunable(model);
}

at::Tensor ChannelPruner::input_like(const at::Tensor& example) {
  if (!example.is_floating_point() || !at::GradMode::is_enabled()) return example;
  return example.detach().clone().requires_grad_().clone();
}

void ChannelPruner::exclude(const std::string& layers) { set_sparsity(layers, 0); }

void ChannelPruner::set_sparsity(const std::string& layers, double sparsity) {
  require_sparsity(sparsity);
  const auto modules = model_.named_modules(/*name_prefix=*/"", /*include_self=*/false);
  require(std::any_of(modules.begin(), modules.end(),
                      [&](const auto& item) { return names(layers, item.key()); }),
          [&] { return "ChannelPruner: no layer has the name " + layers; });
  sparsities_.emplace_back(layers, sparsity);
}

// The layers' smallest sparsity, if any pattern matches.
std::optional<double> ChannelPruner::sparsity_of(const std::vector<std::string>& layers) const {
  std::optional<double> least;
  for (const std::string& layer : layers) {
    const auto last = std::find_if(sparsities_.rbegin(), sparsities_.rend(),
                                   [&](const auto& item) { return names(item.first, layer); });
    if (last != sparsities_.rend()) least = std::min(least.value_or(1), last->second);
  }
  return least;
}

PlannedCuts ChannelPruner::planned() const {
  require_prunable(model_);
  const auto own_sparsity = [this](const std::vector<std::string>& layers) {
    return sparsity_of(layers);
  };
  return plan_cuts(prune::trace_model(model_, forward_), own_sparsity, options_, group_);
}

PruningPlan ChannelPruner::plan() const { return planned().plan; }

// --- Its execution -------------------------------------------------------------------------------

namespace {

using Forward = std::function<std::vector<at::Tensor>()>;

// If forward() throws, undoes the cut and returns the error.
std::optional<std::string> error_after(const ModuleCut& cut, torch::nn::Module& model,
                                       const Forward& forward) {
  cut.apply();
  try {
    const prune::InEvaluation evaluation(model);
    const at::NoGradGuard no_grad;
    forward();
  } catch (const c10::Error& error) {
    cut.undo();
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    cut.undo();
    return error.what();
  }
  return std::nullopt;
}

// Groups whose cut alone fails.
std::string culprits(const PlannedCuts& planned, torch::nn::Module& model, const Forward& forward) {
  std::string found;
  for (std::size_t i = 0; i < planned.by_group.size(); ++i) {
    if (planned.by_group[i].empty()) continue;
    const ModuleCut alone(model, planned.by_group[i]);
    if (!error_after(alone, model, forward))
      alone.undo();
    else
      for (const std::string& layer : planned.plan.groups[i].outputs) {
        if (!found.empty()) found += ", ";
        found += layer;
      }
  }
  return found;
}

}  // namespace

PruningPlan ChannelPruner::apply_to(const std::vector<torch::optim::Optimizer*>& optimizers) {
  for (torch::optim::Optimizer* const optimizer : optimizers) {
    prune::require_readable_state(*optimizer);
    require_of_model(*optimizer, model_);
  }
  const PlannedCuts planned = this->planned();
  require(!planned.plan.cuts.empty(), [&] {
    return "ChannelPruner: there is no channel to remove:\n" + to_string(planned.plan);
  });
  const ModuleCut cut(model_, planned.plan.cuts);
  const auto error = error_after(cut, model_, forward_);
  require(!error, [&] {
    return "ChannelPruner: nothing was changed, because forward() fails with fewer channels in " +
           culprits(planned, model_, forward_) +
           ". It may have their number in a view() or another call: " + *error;
  });
  for (torch::optim::Optimizer* const optimizer : optimizers) cut.cut_state(*optimizer);
  forget_gradients(model_);
  remember(planned.plan.cuts);
  return planned.plan;
}

void ChannelPruner::remember(const std::vector<ChannelCut>& cuts) {
  for (const ChannelCut& cut : cuts) {
    auto [found, is_first] = left_.emplace(std::pair{cut.tensor, cut.dim}, cut.kept);
    if (is_first) continue;
    std::vector<std::int64_t> left;
    for (const std::int64_t index : cut.kept)
      left.push_back(found->second[static_cast<std::size_t>(index)]);
    found->second = std::move(left);
  }
}

// --- State ---------------------------------------------------------------------------------------

namespace {

// "conv1.weight.0": the remaining indices of dimension 0.
std::string name_of(const std::pair<std::string, std::int64_t>& dimension) {
  return dimension.first + "." + std::to_string(dimension.second);
}

ChannelCut cut_of(const std::string& name, const at::Tensor& kept) {
  const std::size_t dot = name.rfind('.');
  const at::Tensor indices = kept.contiguous();
  const auto* const begin = indices.data_ptr<std::int64_t>();
  return {.tensor = name.substr(0, dot),
          .dim = std::stoll(name.substr(dot + 1)),
          .kept = {begin, begin + indices.numel()}};
}

}  // namespace

StateDict ChannelPruner::state_dict() {
  StateDict state;
  state.values.emplace("is_pruned", !left_.empty());
  for (const auto& [dimension, left] : left_)
    state.tensors.emplace(name_of(dimension), whole(at::tensor(left, at::kLong)));
  return state;
}

StateRequest ChannelPruner::wanted(const StateDict& saved) {
  value_of<bool>(saved, "is_pruned");
  Mismatches mismatches;
  std::set<std::string> known;
  for (const auto& [name, tensor] : named_tensors(model_))
    for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) known.insert(name_of({name, dim}));
  for (const auto& [name, tensor] : saved.tensors)
    if (!known.contains(name) || tensor.data.scalar_type() != at::kLong || tensor.data.dim() != 1)
      mismatches.add("the model has no dimension " + name);
  for (const auto& [dimension, left] : left_)
    if (!saved.tensors.contains(name_of(dimension)))
      mismatches.add(name_of(dimension) + " has lost channels, and was saved whole");
  mismatches.require_none("ChannelPruner: the saved channels are not those of this model");
  return everything(saved);
}

void ChannelPruner::load_state_dict(StateDict state) {
  std::vector<ChannelCut> cuts;
  for (const auto& [name, tensor] : state.tensors) cuts.push_back(cut_of(name, tensor.data));
  if (left_.empty()) {
    ModuleCut(model_, cuts).apply();
    forget_gradients(model_);
    return remember(cuts);
  }
  for (const ChannelCut& cut : cuts) {
    const auto own = left_.find({cut.tensor, cut.dim});
    require(own != left_.end() && own->second == cut.kept, [&] {
      return "ChannelPruner: other channels of " + cut.tensor + " are left than were saved";
    });
  }
}

namespace {

std::unique_ptr<CheckpointReader> undamaged(const std::filesystem::path& checkpoint) {
  auto saved = std::make_unique<CheckpointReader>(checkpoint);
  for (const std::string& part : saved->parts())
    for (const auto& [name, tensor] : saved->contents(part).tensors) saved->verify(part, name);
  return saved;
}

// Null without a checkpoint; if all are damaged, throws the oldest one's error.
std::unique_ptr<CheckpointReader> newest_undamaged(const std::filesystem::path& directory) {
  std::exception_ptr error;
  for (const std::filesystem::path& checkpoint : list_checkpoints(directory)) try {
      return undamaged(checkpoint);
    } catch (const Error&) {
      error = std::current_exception();
    }
  if (error) std::rethrow_exception(error);
  return std::filesystem::exists(directory / "manifest.json") ? undamaged(directory) : nullptr;
}

}  // namespace

bool ChannelPruner::apply_saved(const std::filesystem::path& directory, const std::string& part) {
  const auto saved = newest_undamaged(directory);
  if (!saved) return false;
  load_state_dict(saved->read(part, wanted(saved->contents(part))));
  return true;
}

}  // namespace lockstep
