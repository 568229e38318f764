// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/prune/gradual_pruner.h"

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/tensor/distinct_tensors.h"
#include "lockstep/tensor/name_pattern.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep {
namespace {

void require_schedule(const GradualPrunerOptions& options) {
  require(options.initial_sparsity >= 0 && options.initial_sparsity <= options.final_sparsity &&
              options.final_sparsity <= 1,
          "GradualPruner: sparsities are in the range from 0 to 1, the initial one at most the "
          "final one");
  require(options.begin >= 0 && options.begin < options.end && options.every > 0,
          "GradualPruner: `begin` lies before `end`, and `every` is positive");
}

std::vector<std::string> pruned_names(const torch::nn::Module& model,
                                      const std::vector<std::string>& patterns) {
  const NamedTensors parameters = distinct(named_parameters(model));
  std::vector<std::string> names;
  for (const std::string& pattern : patterns)
    require(std::any_of(parameters.begin(), parameters.end(),
                        [&](const auto& item) { return matches(pattern, item.first); }),
            [&] { return "GradualPruner: no parameter has the name " + pattern; });
  for (const auto& [name, parameter] : parameters)
    if (patterns.empty() ? parameter.dim() > 1
                         : std::any_of(patterns.begin(), patterns.end(),
                                       [&, &name = name](const std::string& pattern) {
                                         return matches(pattern, name);
                                       }))
      names.push_back(name);
  return names;
}

}  // namespace

GradualPruner::GradualPruner(torch::nn::Module& model, const ProcessGroup& group,
                             const GradualPrunerOptions& options)
    : options_(options),
      parameters_(pruned_names(model, options.parameters)),
      masks_(model, group) {
  require_schedule(options);
}

// --- The schedule --------------------------------------------------------------------------------

double GradualPruner::scheduled_sparsity() const {
  if (steps_ < options_.begin) return 0;
  const double passed = static_cast<double>(steps_ - options_.begin) /
                        static_cast<double>(options_.end - options_.begin);
  const double left = std::pow(1.0 - std::min(passed, 1.0), 3);
  const double sparsity =
      options_.final_sparsity + (options_.initial_sparsity - options_.final_sparsity) * left;
  return std::clamp(sparsity, options_.initial_sparsity, options_.final_sparsity);
}

bool GradualPruner::is_due() const {
  if (steps_ < options_.begin || steps_ > options_.end) return false;
  return steps_ == options_.end || (steps_ - options_.begin) % options_.every == 0;
}

// From all elements: zeros have the smallest absolute value.
void GradualPruner::renew_masks() {
  for (const std::string& name : parameters_)
    if (masks_.mask(name).defined()) masks_.remove(name);
  if (options_.global) return masks_.global_l1_unstructured(parameters_, scheduled_sparsity());
  for (const std::string& name : parameters_) masks_.l1_unstructured(name, scheduled_sparsity());
}

void GradualPruner::step(torch::optim::Optimizer& optimizer) {
  ++steps_;
  if (is_due()) renew_masks();
  masks_.apply(optimizer);
}

// --- State ---------------------------------------------------------------------------------------

StateDict GradualPruner::state_dict() {
  StateDict state = masks_.state_dict();
  state.values.emplace("steps", steps_);
  return state;
}

StateRequest GradualPruner::wanted(const StateDict& saved) {
  require(value_of<std::int64_t>(saved, "steps") >= 0,
          "GradualPruner: the saved number of steps is negative");
  return masks_.wanted(saved);
}

void GradualPruner::load_state_dict(StateDict state) {
  steps_ = value_of<std::int64_t>(state, "steps");
  masks_.load_state_dict(std::move(state));
}

}  // namespace lockstep
