// SPDX-License-Identifier: Apache-2.0
#include "lockstep/optim/sharded_optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>
#include <torch/optim/lbfgs.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/comm/values.h"
#include "lockstep/job/step_times.h"
#include "lockstep/optim/fused_step.h"
#include "lockstep/optim/gradient_elements.h"
#include "lockstep/optim/layerwise.h"
#include "lockstep/optim/model_part.h"
#include "lockstep/optim/optimizer_state.h"
#include "lockstep/tensor/buffers.h"
#include "lockstep/tensor/cut_tensors.h"
#include "lockstep/tensor/distinct_tensors.h"
#include "lockstep/tensor/tensor_lists.h"

namespace lockstep {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;
using Groups = std::vector<torch::optim::OptimizerParamGroup>;

std::unique_ptr<OptimizerOptions> require_shardable(std::unique_ptr<OptimizerOptions> options) {
  if (dynamic_cast<const torch::optim::LBFGSOptions*>(options.get()) != nullptr)
    throw Error(Fault::unsupported, "LBFGS needs all parameters at once: it cannot be sharded");
  return options;
}

void require_distinct(const std::vector<at::Tensor>& parameters) {
  require(!parameters.empty(), "a sharded optimizer was given no parameters");
  const std::vector<at::Tensor> each = distinct(parameters);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto text = [&](const char* reason) {
      return "parameter " + std::to_string(i) + " of a sharded optimizer is " + reason;
    };
    // Equal up to the first repeated one.
    require(parameters[i].defined() && i < each.size() && parameters[i].is_same(each[i]),
            [&] { return text("undefined or was given before: give each tensor once"); });
    require(!parameters[i].is_meta(), [&] { return text("on the meta device and has no values"); });
  }
}

std::string line_of(const at::Tensor& parameter, std::size_t group) {
  return "group " + std::to_string(group) + shape_text(parameter) + part_text(parameter) + '\n';
}

// All ranks compare the same descriptions, so all throw.
void require_same_on_all_ranks(const std::string& description, const ProcessGroup& group) {
  const auto found =
      differing_line(all_gather_bytes(description, group, {.label = "parameters of an optimizer"}));
  if (found)
    throw Error(Fault::mismatch,
                "the parameters of a sharded optimizer differ between rank 0 and rank " +
                    std::to_string(found->text) + ", from parameter " +
                    std::to_string(found->line) + " on: " + found->first + ", and " + found->other);
}

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& tensor : tensors)
    if (auto elements = optim::gradient_elements(tensor)) gradients.push_back(std::move(*elements));
  return gradients;
}

// NaN if any power is NaN.
double sum_of(const std::vector<double>& powers, double norm_type) {
  double sum = 0;
  for (const double power : powers)
    if (!std::isinf(norm_type))
      sum += power;
    else if (!std::isnan(sum) && !(power <= sum))
      sum = power;
  return sum;
}

void copy_options(const Groups& from, Groups& to) {
  require(from.size() == to.size(),
          "param groups were added to a sharded optimizer after it was made");
  for (std::size_t i = 0; i < to.size(); ++i) to[i].set_options(from[i].options().clone());
}

}  // namespace

ShardedOptimizer::ShardedOptimizer(const Groups& groups, std::unique_ptr<OptimizerOptions> defaults,
                                   Make make, const ProcessGroup& group)
    : Optimizer(groups, require_shardable(std::move(defaults))),
      make_(std::move(make)),
      group_(group) {
  optim::take_options(groups, *defaults_, param_groups_);
  optim::drop_repeated(param_groups_);
  std::string description;
  for (std::size_t i = 0; i < param_groups_.size(); ++i)
    for (const at::Tensor& parameter : param_groups_[i].params()) {
      all_parameters_.push_back(parameter);
      group_of_.push_back(i);
    }
  require_distinct(all_parameters_);
  for (std::size_t i = 0; i < all_parameters_.size(); ++i)
    description += line_of(all_parameters_[i], group_of_[i]);
  require_same_on_all_ranks(description, group_);
}

void ShardedOptimizer::set_shards(std::vector<Shard> shards, const std::vector<at::Tensor>& stepped,
                                  std::vector<at::ScalarType> types) {
  shards_ = std::move(shards);
  types_ = std::move(types);
  std::copy_if(shards_.begin(), shards_.end(), std::back_inserter(own_shards_),
               [&](const Shard& shard) { return shard.owner == group_.rank(); });
  check(own_shards_.size() == stepped.size(), "a shard has no tensor that stands for it");
  stepped_ = stepped;
  Groups groups;
  for (const auto& group : param_groups_)
    groups.emplace_back(std::vector<at::Tensor>{}, group.options().clone());
  for (std::size_t i = 0; i < stepped_.size(); ++i)
    groups[group_of_[own_shards_[i].parameter]].params().push_back(stepped_[i]);
  local_ = make_(groups);
  add_up_parts();
}

// Fragments need whole parameters' sums of squares.
void ShardedOptimizer::add_up_parts() {
  auto* const layerwise = dynamic_cast<LayerwiseOptimizer*>(local_.get());
  if (layerwise == nullptr || std::ranges::all_of(shards_, [&](const Shard& shard) {
        return shard.begin == 0 && shard.end == all_parameters_[shard.parameter].numel();
      }))
    return;
  for (const at::Tensor& parameter : all_parameters_)
    if (const std::string part = part_text(parameter); !part.empty())
      throw Error(
          Fault::unsupported,
          "a sharded LARS or LAMB: a parameter" + part +
              ", cut over other ranks than those that step it: its whole norm is not known");
  std::vector<std::size_t> order;  // By stepped tensor, in the order of `local_`.
  for (std::size_t group = 0; group < param_groups_.size(); ++group)
    for (const Shard& shard : own_shards_)
      if (group_of_[shard.parameter] == group) order.push_back(shard.parameter);
  layerwise->set_add_parts([this, order](std::vector<SquareSums>& sums) {
    std::vector<double> whole(2 * all_parameters_.size());
    for (std::size_t i = 0; i < order.size(); ++i) {
      whole[2 * order[i]] += sums[i].weights;
      whole[2 * order[i] + 1] += sums[i].update;
    }
    group_.all_reduce(buffer_of(whole), ReduceOp::sum, {.label = "norms of parameters"});
    for (std::size_t i = 0; i < order.size(); ++i)
      sums[i] = {.weights = whole[2 * order[i]], .update = whole[2 * order[i] + 1]};
  });
}

// --- Stepping -----------------------------------------------------------------------------------

torch::Tensor ShardedOptimizer::step(LossClosure closure) {
  torch::Tensor loss = optim::loss_of(closure);
  step_all(/*have_met=*/false);
  return loss;
}

void ShardedOptimizer::step_all(bool have_met) {
  const InPhase phase(StepPhase::optimizer);
  const at::NoGradGuard no_grad;
  whole_.reset();
  copy_options(param_groups_, local_->param_groups());
  step_shards(have_met);
  after_step();
}

// The other ranks wait for this rank's step.
void ShardedOptimizer::step_shards(bool have_met) {
  try {
    before_step(have_met);
    local_->step();
  } catch (const std::exception& error) {
    const std::string text = error.what();
    group_.abort("the optimizer's step failed on rank " + std::to_string(group_.rank()) + ": " +
                 // LibTorch's messages continue with stack frames.
                 text.substr(0, text.find('\n')));
    throw;
  }
}

// --- Clipping -----------------------------------------------------------------------------------

double ShardedOptimizer::power_of_norm(const std::vector<at::Tensor>& tensors, double norm_type) {
  const std::vector<at::Tensor> gradients = gradients_of(tensors);
  if (gradients.empty()) return 0;
  std::vector<double> powers;
  for (const at::Tensor& norm : at::_foreach_norm(gradients, norm_type)) {
    const double value = norm.item<double>();
    powers.push_back(std::isinf(norm_type) ? value : std::pow(value, norm_type));
  }
  return sum_of(powers, norm_type);
}

double ShardedOptimizer::norm_of(const std::vector<double>& powers, double norm_type) {
  const double sum = sum_of(powers, norm_type);
  return std::isinf(norm_type) ? sum : std::pow(sum, 1 / norm_type);
}

double ShardedOptimizer::gradient_norm(double norm_type) {
  return norm_of(
      all_gather_value(power_of_norm(stepped_, norm_type), group_, {.label = "norm of gradients"}),
      norm_type);
}

void ShardedOptimizer::make_gradients() {}

std::vector<at::Tensor> ShardedOptimizer::tensors_with_gradients() { return all_parameters_; }

// Ranks with parts of a parameter add its shards, all in the same order.
double ShardedOptimizer::gradient_norm(const ModelPart& model, double norm_type) {
  make_gradients();
  const std::vector<CountedParameters> counted = counted_parameters(model);
  std::map<const void*, std::optional<std::size_t>> place_of;  // In `counted`; none: copies.
  for (const auto& [name, parameter] : model.parameters)
    place_of[parameter.unsafeGetTensorImpl()] = std::nullopt;
  for (std::size_t i = 0; i < counted.size(); ++i)
    for (const at::Tensor& parameter : counted[i].parameters)
      place_of[parameter.unsafeGetTensorImpl()] = i;
  for (std::size_t i = 0; i < all_parameters_.size(); ++i)
    require(place_of.contains(all_parameters_[i].unsafeGetTensorImpl()), [&] {
      return "clip_grad_norm_: parameter " + std::to_string(i) + " is not one of the module";
    });
  std::vector<std::vector<at::Tensor>> shards(counted.size());
  for (std::size_t i = 0; i < stepped_.size(); ++i) {
    const at::Tensor& parameter = all_parameters_[own_shards_[i].parameter];
    if (const auto place = place_of.at(parameter.unsafeGetTensorImpl()))
      shards[*place].push_back(stepped_[i]);
  }

  std::vector<double> powers;
  for (const auto& each : shards) powers.push_back(power_of_norm(each, norm_type));
  const ReduceOp op = std::isinf(norm_type) ? ReduceOp::max : ReduceOp::sum;
  group_.all_reduce(buffer_of(powers), op, {.label = "norm of gradients"});
  for (std::size_t i = 1; i < counted.size(); ++i)
    counted[i].group->all_reduce({.data = &powers[i], .count = 1, .dtype = DType::float64}, op,
                                 {.label = "norm of parts"});
  std::vector<double> total{sum_of(powers, norm_type)};
  if (model.stages) model.stages->all_reduce(buffer_of(total), op, {.label = "norm of stages"});
  return norm_of(total, norm_type);
}

double ShardedOptimizer::clip_grad_norm_(double max_norm, double norm_type,
                                         bool error_if_nonfinite) {
  for (const at::Tensor& parameter : all_parameters_)
    require(part_text(parameter).empty(), [&] {
      return "clip_grad_norm_ of a sharded optimizer: a parameter" + part_text(parameter) +
             ", cut over other ranks than those that step it: call clip_grad_norm_(module, ...)";
    });
  return clip([&] { return gradient_norm(norm_type); }, max_norm, norm_type, error_if_nonfinite);
}

double ShardedOptimizer::clip_grad_norm_(const torch::nn::Module& module, double max_norm,
                                         double norm_type, bool error_if_nonfinite) {
  return clip_grad_norm_(
      ModelPart{.parameters = named_parameters(module), .layouts = layouts_of(module)}, max_norm,
      norm_type, error_if_nonfinite);
}

double ShardedOptimizer::clip_grad_norm_(const ModelPart& model, double max_norm, double norm_type,
                                         bool error_if_nonfinite) {
  return clip([&] { return gradient_norm(model, norm_type); }, max_norm, norm_type,
              error_if_nonfinite);
}

double ShardedOptimizer::clip(const std::function<double()>& norm, double max_norm,
                              double norm_type, bool error_if_nonfinite) {
  require(max_norm >= 0, "clip_grad_norm_: max_norm is negative or NaN");
  require(norm_type > 0, "clip_grad_norm_: norm_type is not positive");
  const InPhase phase(StepPhase::optimizer);
  const at::NoGradGuard no_grad;
  const double total = norm();
  if (error_if_nonfinite && !std::isfinite(total))
    throw Error(Fault::corrupt, "clip_grad_norm_: the total norm is not finite");
  const double factor = max_norm / (total + 1e-6);
  const std::vector<at::Tensor> gradients = gradients_of(stepped_);
  if (!gradients.empty())
    at::_foreach_mul_(gradients, std::isnan(factor) ? factor : std::min(factor, 1.0));
  return total;
}

// --- State --------------------------------------------------------------------------------------

// No state unless its constructor creates some.
std::unique_ptr<Optimizer> ShardedOptimizer::make_whole() const {
  auto whole = make_(param_groups_);
  copy_options(param_groups_, whole->param_groups());
  return whole;
}

OptimizerParamState* ShardedOptimizer::state_of(const at::Tensor& stepped) const {
  const auto slot = local_->state().find(stepped.unsafeGetTensorImpl());
  return slot == local_->state().end() ? nullptr : slot->second.get();
}

void ShardedOptimizer::consolidate_state_dict(int to) {
  require(to >= 0 && to < group_.size(), "consolidate_state_dict: there is no such rank");
  const std::size_t width = encoded_size(*make_param_state(*local_));
  Tensors own;
  for (const at::Tensor& stepped : stepped_)
    for (at::Tensor& tensor : encode(state_of(stepped), width)) own.push_back(std::move(tensor));
  const auto lists = gather_tensors(own, group_, to, {.label = "state of an optimizer"});
  if (group_.rank() != to) return;

  const at::NoGradGuard no_grad;
  auto whole = make_whole();
  whole->state().clear();
  std::vector<std::size_t> next(lists.size());
  for (const Shard& shard : shards_) {
    const auto owner = static_cast<std::size_t>(shard.owner);
    const auto encoded = std::span(lists[owner]).subspan(next[owner], width);
    next[owner] += width;
    if (!encoded.front().defined()) continue;
    const at::Tensor& parameter = all_parameters_[shard.parameter];
    auto& state = whole->state()[parameter.unsafeGetTensorImpl()];
    if (!state) state = make_param_state(*whole);
    assemble(encoded, shard, parameter, *state);
  }
  whole_ = std::move(whole);
}

void ShardedOptimizer::save(torch::serialize::OutputArchive& archive) const {
  require(whole_ != nullptr,
          "a sharded optimizer can be saved on rank `to` only, between consolidate_state_dict(to) "
          "and the "
          "next step()");
  copy_options(param_groups_, whole_->param_groups());
  whole_->save(archive);
}

void ShardedOptimizer::load(torch::serialize::InputArchive& archive) {
  const at::NoGradGuard no_grad;
  auto whole = make_whole();
  whole->load(archive);
  copy_options(whole->param_groups(), param_groups_);
  whole_.reset();
  auto& states = local_->state();
  states.clear();
  for (std::size_t i = 0; i < stepped_.size(); ++i) {
    const at::Tensor& parameter = all_parameters_[own_shards_[i].parameter];
    auto& state = whole->state()[parameter.unsafeGetTensorImpl()];
    if (!state) continue;
    auto rest = state->clone();  // A parameter may have several shards here.
    states[stepped_[i].unsafeGetTensorImpl()] =
        cut(std::move(rest), own_shards_[i], parameter, stepped_[i]);
  }
}

}  // namespace lockstep
