// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/kept_gradients.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/parallel/gradients/finite_check.h"
#include "lockstep/parallel/gradients/gradient_memory.h"

namespace lockstep::parallel {
namespace {

std::shared_ptr<GradientPool> pool_for(const NamedTensors& parameters, const ProcessGroup& group) {
  std::vector<std::size_t> large;
  for (const auto& [name, parameter] : parameters)
    if (is_large_gradient(parameter.nbytes())) large.push_back(parameter.nbytes());
  return large.empty() || group.size() == 1 ? nullptr : GradientPool::make(large, group);
}

}  // namespace

bool KeptGradients::begin(bool) {
  release();
  return false;
}

Taken KeptGradients::take(std::size_t index, at::Tensor& gradient, const at::Tensor&) {
  if (!check_finite_ || !gradient.defined()) return Taken::fine;
  if (gradient.is_cpu()) return all_finite(gradient) ? Taken::fine : Taken::non_finite;
  unseen_.push_back(index);
  return Taken::fine;
}

Taken KeptGradients::take_left_out(std::size_t index, at::Tensor& gradient) {
  return take(index, gradient, gradient);
}

std::optional<std::size_t> KeptGradients::wait() {
  if (unseen_.empty()) return {};
  std::sort(unseen_.begin(), unseen_.end());
  finite_check_.enqueue(unseen_, [this](std::size_t i) { return parameters_[i].second.grad(); });
  return finite_check_.first_non_finite();
}

void KeptGradients::finish(const PassReports& reports, double factor) {
  for (std::size_t i = 0; factor != 1 && i < parameters_.size(); ++i) {
    const at::Tensor& parameter = parameters_[i].second;
    if (reports.used_by_any(i) && parameter.grad().defined()) parameter.mutable_grad().mul_(factor);
  }
}

void KeptGradients::release() noexcept {
  unseen_.clear();
  finite_check_.clear();
}

PooledGradients::PooledGradients(const NamedTensors& parameters, const ProcessGroup& group,
                                 bool check_finite)
    : KeptGradients(parameters, check_finite), pool_(pool_for(parameters, group)) {}

std::vector<RegisteredMemory> PooledGradients::memory() const {
  return pool_ != nullptr ? std::vector{pool_->memory()} : std::vector<RegisteredMemory>{};
}

bool MicrobatchGradients::begin(bool) {
  throw Error(Fault::misuse,
              "backward(): DeterministicDataParallel runs it within train_microbatches() only");
}

}  // namespace lockstep::parallel
