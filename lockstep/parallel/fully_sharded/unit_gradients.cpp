// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/fully_sharded/unit_gradients.h"

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/parallel/fully_sharded/unit_memory.h"
#include "lockstep/parallel/gradients/finite_check.h"
#include "lockstep/parallel/replicate/parameter_store.h"

namespace lockstep::parallel {
namespace {

std::shared_ptr<GradientPool> pool_for(const NamedTensors& parameters,
                                       const BucketAssignment& units, const ProcessGroup& group) {
  if (!parameters.front().second.is_cpu()) return nullptr;
  const auto rooms = rooms_for_two_units(parameters, units);
  return rooms.empty() || group.size() == 1 ? nullptr : GradientPool::make(rooms, group);
}

}  // namespace

UnitGradients::UnitGradients(const NamedTensors& parameters, std::shared_ptr<ShardedUnits> units,
                             const ProcessGroup& group, const Settings& settings)
    : parameters_(parameters),
      units_(std::move(units)),
      group_(group),
      settings_(settings),
      pool_(pool_for(parameters, units_->units(), units_->ranks().copy.host)),
      gradients_(parameters.size()),
      means_(units_->units().size()),
      reduction_(parameters.front().second.device()) {}

UnitGradients::~UnitGradients() { reduction_.abandon(group_); }

void UnitGradients::assign(const BucketAssignment& assignment) {
  const BucketAssignment& units = units_->units();
  unit_of_.clear();
  for (const auto& bucket : assignment)
    unit_of_.push_back(
        static_cast<std::size_t>(std::find(units.begin(), units.end(), bucket) - units.begin()));
}

bool UnitGradients::begin(bool early) {
  if (const auto left_out = units_->used_without_stepper())
    throw Error(Fault::misuse, "FullyShardedDataParallel: parameter " +
                                   parameters_[*left_out].first +
                                   " has a gradient and is in no FullyShardedOptimizer, and other "
                                   "optimizers find none: give it to one, or freeze it before "
                                   "FullyShardedDataParallel is made");
  forget_pass();
  return early;
}

// on_host() checks a device's gradient.
Taken UnitGradients::judge(const at::Tensor& gradient) const {
  return !gradient.is_cpu() || !settings_.check_finite || all_finite(gradient) ? Taken::fine
                                                                               : Taken::non_finite;
}

Taken UnitGradients::take(std::size_t index, at::Tensor& gradient, const at::Tensor&) {
  gradients_[index] = std::exchange(gradient, at::Tensor());
  return judge(gradients_[index]);
}

Taken UnitGradients::take_left_out(std::size_t index, at::Tensor& gradient) {
  left_out_.push_back(index);
  gradients_[index] = gradient;
  return gradient.defined() ? judge(gradient) : Taken::fine;
}

// One at a time: only two units' gradients take memory.
void UnitGradients::start(std::size_t bucket) {
  const std::size_t unit = unit_of_[bucket];
  if (settings_.overlapped) {
    reduction_.let_finish();
    return reduction_.start([this, unit] { average(unit); });
  }
  if (error_) return;  // The group is broken.
  try {
    reduction_.run([this, unit] { average(unit); });
  } catch (...) {
    error_ = std::current_exception();
  }
}

std::optional<std::size_t> UnitGradients::wait() {
  reduction_.wait();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  return std::exchange(non_finite_, std::nullopt);
}

at::Tensor UnitGradients::on_host(std::size_t index, const at::Tensor& gradient) {
  if (!gradient.defined() || gradient.is_cpu()) return gradient;
  const at::Tensor here = gradient.cpu();
  if (settings_.check_finite && !all_finite(here))
    non_finite_ = std::min(index, non_finite_.value_or(index));
  return here;
}

void UnitGradients::average(std::size_t unit) {
  GradientSlices::Gradients gradients;
  for (const std::size_t i : units_->units()[unit])
    gradients.push_back(on_host(i, std::exchange(gradients_[i], at::Tensor())));
  means_[unit] = units_->average(unit, std::move(gradients));
}

void UnitGradients::finish(const PassReports& reports, double factor) {
  std::vector<bool> used(parameters_.size());
  for (std::size_t i = 0; i < used.size(); ++i) used[i] = reports.used_by_any(i);
  for (std::size_t unit = 0; unit < means_.size(); ++unit) {
    for (const at::Tensor& mean : means_[unit])
      if (factor != 1) mean.mul_(factor);
    units_->add(unit, means_[unit], used);
  }
  for (const std::size_t i : left_out_)
    if (used[i]) parameters_[i].second.mutable_grad().reset();
  forget_pass();
  units_->store().end_pass();
}

void UnitGradients::forget_pass() noexcept {
  reduction_.drain();
  error_ = nullptr;
  non_finite_.reset();
  left_out_.clear();
  for (at::Tensor& gradient : gradients_) gradient.reset();
  for (auto& means : means_) means.clear();
}

void UnitGradients::release() noexcept {
  forget_pass();
  units_->store().end_pass();
  units_->forget();
}

// Other ranks may wait in a gather or an average.
bool UnitGradients::cut_short(std::string_view reason) const noexcept {
  if (!units_->store().abandon(reason)) return false;
  const ShardedUnits::Ranks& ranks = units_->ranks();
  abort_groups({ranks.copy.host, ranks.copy.rail, ranks.replicas},
               "a pass of FullyShardedDataParallel", reason);
  return true;
}

std::vector<RegisteredMemory> UnitGradients::memory() const {
  return pool_ != nullptr ? std::vector{pool_->memory()} : std::vector<RegisteredMemory>{};
}

}  // namespace lockstep::parallel
