// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/shared_optimizer.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_norm.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>

#include "lockstep/comm/error.h"
#include "lockstep/comm/values.h"
#include "lockstep/parallel/gradient_slices.h"
#include "lockstep/parallel/shared_parameters.h"
#include "lockstep/parallel/stopwatch.h"

namespace lockstep {
namespace {

std::shared_ptr<SharedParameters> require_usable(const std::shared_ptr<SharedParameters>& shared,
                                                 bool elementwise) {
  require(shared != nullptr,
          "SharedOptimizer: DistributedDataParallel was made without share_parameters");
  if (!elementwise)
    throw Error(Fault::unsupported,
                "SharedOptimizer gives an optimizer fragments of parameters, and this one is not "
                "known to step each element by itself (is_elementwise)");
  return shared;
}

// Of `tensors` taken as one vector, and of `others` that are parts of it.
double norm_of(const std::vector<at::Tensor>& tensors, double norm_type,
               const std::function<std::vector<double>(double)>& others) {
  const bool largest = std::isinf(norm_type);
  const auto combine = [&](double a, double b) {
    return largest ? (std::isnan(a) || b <= a ? a : b) : a + b;
  };
  double mine = 0;
  if (!tensors.empty())
    for (const at::Tensor& norm : at::_foreach_norm(tensors, norm_type)) {
      const double value = norm.item<double>();
      mine = combine(mine, largest ? value : std::pow(value, norm_type));
    }
  double total = 0;
  for (const double part : others(mine)) total = combine(total, part);
  return largest ? total : std::pow(total, 1 / norm_type);
}

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& tensor : tensors)
    if (tensor.grad().defined()) gradients.push_back(tensor.grad());
  return gradients;
}

}  // namespace

SharedOptimizerBase::SharedOptimizerBase(const DataParallelBase& ddp, const Groups& groups,
                                         std::unique_ptr<torch::optim::OptimizerOptions> defaults,
                                         Make make, bool elementwise)
    : ShardedOptimizer(groups, std::move(defaults), std::move(make), ddp.group_),
      are_means_(ddp.is_deterministic()),
      parameters_(require_usable(ddp.shared_, elementwise)),
      slices_(std::make_unique<const GradientSlices>(parameters_->require_shared(all_parameters()),
                                                     group())) {
  std::vector<at::Tensor> fragments;
  for (const auto& [parameter, begin, end, owner] : slices_->shards())
    if (owner == group().rank())
      fragments.push_back(parameters_->fragment(all_parameters()[parameter], begin, end));
  set_shards(slices_->shards(), fragments);
}

SharedOptimizerBase::~SharedOptimizerBase() = default;

std::vector<at::Tensor> SharedOptimizerBase::gradient_memory() const { return slices_->flats(); }

void SharedOptimizerBase::average() {
  parameters_->require_intact();
  if (averaged_) {
    const auto& all = all_parameters();
    require(std::none_of(all.begin(), all.end(), [](const auto& p) { return p.grad().defined(); }),
            "there are new gradients since clip_grad_norm_(): step(), or zero_grad(), comes first");
    const Stopwatch watch(times_.wait);
    group().barrier({.tag = "step of shared parameters"});  // Others may still read them.
    return;
  }
  std::vector<bool> used;
  {
    const Stopwatch watch(times_.wait);
    used = slices_->used();
  }
  const Stopwatch watch(times_.reduce);
  const auto parts = are_means_ ? slices_->cut(used) : slices_->average(used);
  for (std::size_t i = 0; i < parts.size(); ++i) stepped()[i].mutable_grad() = parts[i];
  averaged_ = true;
}

void SharedOptimizerBase::before_step() {
  average();
  step_began_ = std::chrono::steady_clock::now();
}

void SharedOptimizerBase::after_step() {
  times_.step += std::chrono::steady_clock::now() - step_began_;
  parameters_->complete_step();
  forget();
  const Stopwatch watch(times_.wait);
  group().barrier({.tag = "shared parameters are stepped"});
  parameters_->note_step();
}

void SharedOptimizerBase::forget() {
  for (const at::Tensor& fragment : stepped()) fragment.mutable_grad().reset();
  averaged_ = false;
}

void SharedOptimizerBase::zero_grad(bool set_to_none) {
  forget();
  ShardedOptimizer::zero_grad(set_to_none);
}

// Of the means. Where every rank has all of them, each takes the norm of all: of slices its bits would
// depend on the number of ranks.
double SharedOptimizerBase::average_with_norm(double norm_type) {
  if (!are_means_) {
    average();
    return norm_of(gradients_of(stepped()), norm_type, [&](double mine) {
      return all_gather_value(mine, group(), {.tag = "norm of gradients"});
    });
  }
  require(!averaged_, "clip_grad_norm_: gradients that are deterministic are clipped once a step");
  const double norm = norm_of(gradients_of(all_parameters()), norm_type,
                              [](double whole) { return std::vector{whole}; });
  average();
  return norm;
}

double SharedOptimizerBase::clip_grad_norm_(double max_norm, double norm_type,
                                            bool error_if_nonfinite) {
  require(max_norm >= 0, "clip_grad_norm_: max_norm is negative or NaN");
  require(norm_type > 0, "clip_grad_norm_: norm_type is not positive");
  const at::NoGradGuard no_grad;
  const double total = average_with_norm(norm_type);
  const std::vector<at::Tensor> parts = gradients_of(stepped());
  if (error_if_nonfinite && !std::isfinite(total))
    throw Error(Fault::corrupt, "clip_grad_norm_: the total norm is not finite");
  const double factor = max_norm / (total + 1e-6);
  if (!parts.empty()) at::_foreach_mul_(parts, std::isnan(factor) ? factor : std::min(factor, 1.0));
  return total;
}

}  // namespace lockstep
