// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/owned_gradients.h"

#include <ATen/core/grad_mode.h>

#include <string>
#include <utility>

#include "lockstep/parallel/gradients/gradient_layout.h"
#include "lockstep/parallel/gradients/large_gradient.h"
#include "lockstep/parallel/gradients/scaled_copy.h"
#include "lockstep/tensor/coalesced.h"
#include "lockstep/tensor/collectives.h"

namespace lockstep {

OwnedGradients::OwnedGradients(const NamedTensors& parameters, std::vector<int> owners,
                               const ProcessGroup& group)
    : parameters_(parameters),
      owners_(std::move(owners)),
      group_(group),
      bucket_of_(parameters.size()),
      places_(parameters.size()) {
  for (std::size_t i = 0; i < parameters.size(); ++i)
    means_.emplace_back(at::Tensor().getIntrusivePtr());
}

void OwnedGradients::assign(const BucketAssignment& assignment) {
  assignment_ = assignment;
  for (std::size_t b = 0; b < assignment.size(); ++b)
    for (const std::size_t i : assignment[b]) bucket_of_[i] = b;
}

bool OwnedGradients::take(std::size_t index, at::Tensor& gradient, const at::Tensor& incoming,
                          bool check_finite) {
  make_writable(gradient, parameters_[index].second, incoming);
  places_[index] = gradient;
  const bool finite = !check_finite || all_finite(gradient);
  if (!is_owned(index)) gradient.reset();
  return finite;
}

bool OwnedGradients::take_left_out(std::size_t index, const at::Tensor& gradient,
                                   bool check_finite) {
  at::Tensor& place = places_[index];
  place = like_gradient(parameters_[index].second);
  if (gradient.defined())
    place.copy_(gradient);
  else
    place.zero_();
  return !check_finite || !gradient.defined() || all_finite(gradient);
}

void OwnedGradients::adopt(std::size_t index, at::Tensor& gradient) const {
  gradient = is_owned(index) ? places_[index] : at::Tensor();
}

bool OwnedGradients::is_mean(std::size_t index, const at::Tensor& gradient) const {
  const auto mean = means_[index].lock();
  return gradient.defined() && mean.get() == gradient.unsafeGetTensorImpl();
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
  // Dense, and laid out alike on all ranks: the order of its elements does not matter.
  const at::Tensor flat = places_[index].as_strided({places_[index].numel()}, {1});
  lockstep::reduce(flat, group_, owners_[index], ReduceOp::average,
                   {.label = parameters_[index].first});
  if (!is_owned(index)) places_[index].reset();
}

void OwnedGradients::multiply(double factor) const {
  for (const at::Tensor& place : places_)
    if (place.defined()) place.mul_(factor);
}

void OwnedGradients::release(bool means) {
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (means && places_[i].defined()) means_[i] = places_[i].getIntrusivePtr();
    places_[i].reset();
  }
}

void OwnedGradients::abort() const {
  group_.abort("DistributedDataParallel was destroyed during backward()");
}

}  // namespace lockstep
