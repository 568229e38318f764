// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/owned_gradients.h"

#include <ATen/core/grad_mode.h>

#include <string>
#include <utility>

#include "lockstep/parallel/gradients/finite_check.h"
#include "lockstep/parallel/gradients/gradient_memory.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/tensor_lists.h"

namespace lockstep::parallel {

OwnedGradients::OwnedGradients(const NamedTensors& parameters, std::vector<int> owners,
                               const ProcessGroup& group, bool check_finite)
    : parameters_(parameters),
      forms_(gradient_forms(parameters)),
      owners_(std::move(owners)),
      group_(group),
      check_finite_(check_finite),
      places_(parameters.size()),
      reduction_(parameters.front().second.device()) {
  for (std::size_t i = 0; i < parameters.size(); ++i)
    means_.emplace_back(at::Tensor().getIntrusivePtr());
}

OwnedGradients::~OwnedGradients() { reduction_.abandon(group_); }

void OwnedGradients::assign(const BucketAssignment& assignment) {
  reduction_.drain();
  assignment_ = assignment;
}

bool OwnedGradients::begin(bool early) {
  release();
  left_out_.clear();
  return early;
}

Taken OwnedGradients::take(std::size_t index, at::Tensor& gradient, const at::Tensor& incoming) {
  const bool was_mean = is_mean(index, gradient);
  const GradientForm& form = forms_[index];
  if (!gradient.defined())
    gradient = form.make().zero_();
  else if (!form.fits(gradient) || shares_incoming_memory(gradient, incoming))
    gradient = form.make().copy_(gradient);
  places_[index] = gradient;
  const Taken found = taken(index, was_mean);
  if (!is_owned(index)) gradient.reset();
  return found;
}

Taken OwnedGradients::take_left_out(std::size_t index, at::Tensor& gradient) {
  left_out_.push_back(index);
  at::Tensor& place = places_[index];
  place = forms_[index].make();
  if (!gradient.defined()) {
    place.zero_();
    return Taken::fine;
  }
  place.copy_(gradient);
  return taken(index, is_mean(index, gradient));
}

Taken OwnedGradients::taken(std::size_t index, bool was_mean) const {
  if (was_mean) return Taken::old_mean;
  return !check_finite_ || all_finite(places_[index]) ? Taken::fine : Taken::non_finite;
}

bool OwnedGradients::is_mean(std::size_t index, const at::Tensor& gradient) const {
  const auto mean = means_[index].lock();
  return gradient.defined() && mean.get() == gradient.unsafeGetTensorImpl();
}

void OwnedGradients::start(std::size_t bucket) {
  reduction_.start([this, bucket] { reduce(bucket); });
}

std::optional<std::size_t> OwnedGradients::wait() {
  reduction_.wait();
  return {};
}

void OwnedGradients::reduce(std::size_t bucket) {
  const at::NoGradGuard no_grad;
  for (int owner = 0; owner < group_.size(); ++owner) {
    std::vector<at::Tensor> small;
    std::string label = "bucket " + std::to_string(bucket) + ":";
    for (const std::size_t i : assignment_[bucket]) {
      if (owners_[i] != owner) continue;
      const auto& [name, parameter] = parameters_[i];
      if (is_large_gradient(parameter.nbytes())) {
        reduce_in_place(i);
        continue;
      }
      small.push_back(places_[i]);
      label += ' ' + name;
      if (!is_owned(i)) places_[i].reset();
    }
    reduce_coalesced(small, group_, owner, ReduceOp::average, {.label = label});
  }
}

void OwnedGradients::reduce_in_place(std::size_t index) {
  // Dense and alike on all ranks: order does not matter.
  const at::Tensor flat = places_[index].as_strided({places_[index].numel()}, {1});
  lockstep::reduce(flat, group_, owners_[index], ReduceOp::average,
                   {.label = parameters_[index].first});
  if (!is_owned(index)) places_[index].reset();
}

void OwnedGradients::finish(const PassReports& reports, double factor) {
  for (const at::Tensor& place : places_)
    if (factor != 1 && place.defined()) place.mul_(factor);
  for (const std::size_t i : left_out_)
    if (reports.used_by_any(i)) adopt(i);
  for (std::size_t i = 0; i < places_.size(); ++i)
    if (places_[i].defined()) means_[i] = places_[i].getIntrusivePtr();
  forget_places();
}

void OwnedGradients::adopt(std::size_t index) const {
  parameters_[index].second.mutable_grad() = is_owned(index) ? places_[index] : at::Tensor();
}

void OwnedGradients::release() noexcept {
  reduction_.drain();
  forget_places();
}

void OwnedGradients::forget_places() {
  for (at::Tensor& place : places_) place.reset();
}

}  // namespace lockstep::parallel
