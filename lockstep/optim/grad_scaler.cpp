// SPDX-License-Identifier: Apache-2.0
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <exception>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/values.h"
#include "lockstep/job/step_times.h"
#include "lockstep/optim/mixed_precision.h"
#include "lockstep/optim/sharded_optimizer.h"
#include "lockstep/tensor/distinct_tensors.h"

namespace lockstep {
namespace {

using torch::optim::Optimizer;

void require_factors(double growth, double backoff) {
  require(growth > 1, "GradScaler: growth_factor must be greater than 1");
  require(backoff < 1, "GradScaler: backoff_factor must be less than 1");
}

const GradScalerOptions& checked(const GradScalerOptions& options) {
  if (options.enabled) require_factors(options.growth_factor, options.backoff_factor);
  return options;
}

std::vector<at::Tensor> parameters_of(const Optimizer& optimizer) {
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer.param_groups())
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  return distinct(std::move(parameters));
}

// By device and type, as kernel calls require.
std::vector<std::vector<at::Tensor>> grouped_gradients(const std::vector<at::Tensor>& tensors) {
  std::vector<std::vector<at::Tensor>> groups;
  for (const at::Tensor& tensor : tensors) {
    const at::Tensor& gradient = tensor.grad();
    if (!gradient.defined()) continue;
    const at::Tensor values = gradient.is_sparse() ? gradient._values() : gradient;
    const auto same = [&](const auto& group) {
      return group.front().device() == values.device() &&
             group.front().scalar_type() == values.scalar_type();
    };
    auto found = std::ranges::find_if(groups, same);
    if (found == groups.end()) found = groups.emplace(groups.end());
    found->push_back(values);
  }
  return groups;
}

}  // namespace

GradScaler::GradScaler(const ProcessGroup& group, const GradScalerOptions& options)
    : options_(checked(options)),
      group_(group.size() > 1 ? std::optional(group) : std::nullopt),
      scale_(at::scalar_tensor(options.init_scale, at::kFloat)),
      growth_tracker_(at::zeros({}, at::kInt)) {}

// --- A step --------------------------------------------------------------------------------------

at::Tensor GradScaler::scale(const at::Tensor& output) {
  if (!options_.enabled) return output;
  has_scaled_ = true;
  return output * scale_.to(output.device());
}

std::vector<at::Tensor> GradScaler::scale(at::TensorList outputs) {
  if (!options_.enabled) return outputs.vec();
  has_scaled_ = true;
  // A copy: update() changes scale_ in place, perhaps between two outputs' backward().
  const at::Tensor factor = scale_.clone();
  std::vector<at::Tensor> scaled;
  for (const at::Tensor& output : outputs) scaled.push_back(output * factor.to(output.device()));
  return scaled;
}

void GradScaler::require_scaled(const char* function) const {
  require(has_scaled_, [&] {
    return std::string("GradScaler: ") + function +
           "() was called, and scale() was not: call backward() on scale(loss)";
  });
}

GradScaler::Found GradScaler::unscale_gradients(const std::vector<at::Tensor>& tensors) const {
  const at::NoGradGuard no_grad;
  // Some compilers divide floats inexactly (grad_scaler.py).
  const at::Tensor inverse = scale_.to(at::kDouble).reciprocal().to(at::kFloat);
  Found found = Found::no_gradient;
  for (const std::vector<at::Tensor>& group : grouped_gradients(tensors)) {
    const at::Tensor& first = group.front();
    require(first.scalar_type() != at::kHalf,
            "GradScaler: a gradient is of float16, in which it may have overflowed: keep weights "
            "in float32, and use Autocast");
    at::Tensor any = at::zeros({}, first.options().dtype(at::kFloat));
    at::_amp_foreach_non_finite_check_and_unscale_(group, any, inverse.to(first.device()));
    found = std::max(found, any.item<float>() == 0 ? Found::finite : Found::non_finite);
  }
  return found;
}

GradScaler::Step& GradScaler::step_of(const Optimizer& optimizer) {
  const auto found = std::ranges::find(steps_, &optimizer, &Step::optimizer);
  return found != steps_.end() ? *found : steps_.emplace_back(Step{.optimizer = &optimizer});
}

// Some ranks may have no loss to scale.
void GradScaler::agree(Step& step, const char* function) {
  constexpr std::string_view label = "infinities of a GradScaler";
  if (step.apart)
    step.found = std::ranges::max(all_gather_value(step.found, *step.apart, {.label = label}));
  if (!group_) return;
  for (const Seen& seen :
       all_gather_value(Seen{step.found, has_scaled_}, *group_, {.label = label})) {
    step.found = std::max(step.found, seen.found);
    has_scaled_ = has_scaled_ || seen.has_scaled;
  }
  require_scaled(function);
}

// The other ranks wait in agree().
void GradScaler::abort_groups(const Step& step, const std::string& error) const {
  for (const std::optional<ProcessGroup>& group : {step.apart, group_})
    if (group)
      group->abort("GradScaler could not unscale gradients on rank " +
                   std::to_string(group->rank()) + ": " + error.substr(0, error.find('\n')));
}

void GradScaler::unscale_(Optimizer& optimizer) {
  if (!options_.enabled) return;
  const InPhase phase(StepPhase::optimizer);
  if (!group_) require_scaled("unscale_");
  Step& step = step_of(optimizer);
  require(step.stage != Stage::unscaled,
          "GradScaler: unscale_() was called for this optimizer since the last update()");
  require(step.stage != Stage::stepped, "GradScaler: unscale_() was called after step()");
  auto* const sharded = dynamic_cast<ShardedOptimizer*>(&optimizer);
  if (sharded != nullptr && sharded->has_gradients_apart()) step.apart = sharded->group();
  try {
    step.found = unscale_gradients(sharded != nullptr ? sharded->tensors_with_gradients()
                                                      : parameters_of(optimizer));
  } catch (const std::exception& error) {
    abort_groups(step, error.what());
    throw;
  }
  step.stage = Stage::unscaled;
}

bool GradScaler::step(Optimizer& optimizer) {
  if (!options_.enabled) {
    optimizer.step();
    return true;
  }
  const InPhase phase(StepPhase::optimizer);
  if (!group_) require_scaled("step");
  Step& step = step_of(optimizer);
  require(step.stage != Stage::stepped,
          "GradScaler: step() was called for this optimizer since the last update()");
  if (step.stage == Stage::ready) unscale_(optimizer);
  agree(step, "step");
  require(step.found != Found::no_gradient,
          "GradScaler: the optimizer has no gradients. DistributedDataParallel takes those that "
          "are not finite away, unless its option is NonFinite::ignore");
  const bool is_finite = step.found == Found::finite;
  auto* const sharded = dynamic_cast<ShardedOptimizer*>(&optimizer);
  if (sharded == nullptr && is_finite)
    optimizer.step();
  else if (sharded != nullptr)
    is_finite ? sharded->step_all(/*have_met=*/step.apart.has_value()) : sharded->omit_step();
  step.stage = Stage::stepped;
  return is_finite;
}

// --- The scale -----------------------------------------------------------------------------------

void GradScaler::update() {
  if (!options_.enabled) return;
  if (!group_) require_scaled("update");
  Found found = Found::no_gradient;
  for (Step& step : steps_) {
    if (step.stage == Stage::unscaled) agree(step, "update");
    found = std::max(found, step.found);
  }
  require(found != Found::no_gradient,
          "GradScaler: update() was called, and no optimizer with gradients was unscaled or "
          "stepped since the last one");
  const at::NoGradGuard no_grad;
  const at::Tensor any = at::scalar_tensor(found == Found::non_finite ? 1 : 0, at::kFloat);
  at::Tensor scale = scale_, growth_tracker = growth_tracker_;
  at::_amp_update_scale_(scale, growth_tracker, any, options_.growth_factor,
                         options_.backoff_factor, options_.growth_interval);
  steps_.clear();
}

void GradScaler::update(double new_scale) {
  if (!options_.enabled) return;
  if (!group_) require_scaled("update");
  const at::NoGradGuard no_grad;
  scale_.fill_(new_scale);
  steps_.clear();
}

double GradScaler::get_scale() const { return options_.enabled ? scale_.item<float>() : 1; }

// --- State ---------------------------------------------------------------------------------------

StateDict GradScaler::state_dict() {
  if (!options_.enabled) return {};
  return {.tensors = {},
          .values = {{"scale", get_scale()},
                     {"growth_factor", options_.growth_factor},
                     {"backoff_factor", options_.backoff_factor},
                     {"growth_interval", options_.growth_interval},
                     {"_growth_tracker", std::int64_t{growth_tracker_.item<std::int32_t>()}}}};
}

StateRequest GradScaler::wanted(const StateDict& saved) {
  if (!options_.enabled) return {};
  require(!saved.values.empty(),
          "GradScaler: the saved state is empty, as that of a scaler that is not enabled");
  value_of<double>(saved, "scale");
  require_factors(value_of<double>(saved, "growth_factor"),
                  value_of<double>(saved, "backoff_factor"));
  value_of<std::int64_t>(saved, "growth_interval");
  const std::int64_t tracker = value_of<std::int64_t>(saved, "_growth_tracker");
  require(tracker >= 0 && std::in_range<std::int32_t>(tracker), [&] {
    return "GradScaler: the saved _growth_tracker is not a count: " + std::to_string(tracker);
  });
  return {};
}

void GradScaler::load_state_dict(StateDict state) {
  if (!options_.enabled) return;
  const at::NoGradGuard no_grad;
  scale_.fill_(value_of<double>(state, "scale"));
  options_.growth_factor = value_of<double>(state, "growth_factor");
  options_.backoff_factor = value_of<double>(state, "backoff_factor");
  options_.growth_interval = value_of<std::int64_t>(state, "growth_interval");
  growth_tracker_.fill_(value_of<std::int64_t>(state, "_growth_tracker"));
}

}  // namespace lockstep
