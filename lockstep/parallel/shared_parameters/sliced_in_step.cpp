// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/shared_parameters/sliced_in_step.h"

#include <algorithm>
#include <utility>

#include "lockstep/job/step_times.h"
#include "lockstep/parallel/replicate/parameter_store.h"

namespace lockstep::parallel {
namespace {

const std::vector<at::Tensor>& required(const std::vector<at::Tensor>& parameters,
                                        const ParameterStore& shared) {
  for (const at::Tensor& parameter : parameters) shared.require_shared(parameter);
  return parameters;
}

}  // namespace

SlicedInStep::SlicedInStep(const std::vector<at::Tensor>& parameters, const ParameterStore& shared,
                           const ProcessGroup& group, Passes passes)
    : parameters_(parameters),
      passes_(std::move(passes)),
      slices_(required(parameters, shared), host_groups(group, "shared parameters")) {
  for (const auto& [parameter, begin, end, owner] : slices_.shards())
    if (owner == group.rank())
      fragments_.push_back(shared.fragment(parameters[parameter], begin, end));
}

bool SlicedInStep::is_averaged() const {
  return averaged_in_ == *passes_.averaged &&
         std::none_of(parameters_.begin(), parameters_.end(),
                      [](const at::Tensor& p) { return p.grad().defined(); });
}

bool SlicedInStep::average() {
  if (is_averaged()) return false;
  forget();
  GradientSlices::Gradients gradients;
  for (const at::Tensor& parameter : parameters_) gradients.push_back(parameter.grad());
  used_ = slices_.used(gradients);
  const InPhase phase(StepPhase::reduce);
  const auto means = passes_.leave_means ? slices_.cut(gradients, used_)
                                         : slices_.average(std::move(gradients), used_,
                                                           GradientSlices::Means::in_place);
  for (std::size_t i = 0; i < means.size(); ++i) fragments_[i].mutable_grad() = means[i];
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (used_[i]) parameters_[i].mutable_grad().reset();
  averaged_in_ = *passes_.averaged;
  return true;
}

void SlicedInStep::forget() {
  for (const at::Tensor& fragment : fragments_) fragment.mutable_grad().reset();
  averaged_in_.reset();
}

}  // namespace lockstep::parallel
