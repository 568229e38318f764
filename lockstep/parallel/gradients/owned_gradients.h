// Stage 2 of ZeRO: gradients on their way from autograd to their mean on the one rank that steps
// their parameter. Elsewhere they are freed as soon as they are part of it.
//
// Large ones are summed where autograd has made them; small ones of a bucket that have one owner in
// copies beside each other.
// Nothing of a gradient that somebody else owns remains in `.grad` once it was taken.
//
// Thread safety: reduce() may run on another thread while the caller takes gradients of other
// buckets.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <cstddef>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/gradients/bucket_assignment.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep {

class OwnedGradients {
 public:
  // `owners` are the ranks that step the `parameters`, which outlive this. `group` is its own.
  OwnedGradients(const NamedTensors& parameters, std::vector<int> owners,
                 const ProcessGroup& group);

  // By which buckets gradients are taken from now on.
  void assign(const BucketAssignment& assignment);

  std::size_t bucket_of(std::size_t index) const { return bucket_of_[index]; }

  // Takes the gradient of parameter `index`, as GradientBuckets does, and leaves it in `gradient`
  // on its owner alone, as what will be the mean. Returns false if `check_finite` found that it is
  // not finite.
  bool take(std::size_t index, at::Tensor& gradient, const at::Tensor& incoming, bool check_finite);

  // The same for a rank whose pass has left the parameter out: `gradient` keeps its value until
  // adopt().
  bool take_left_out(std::size_t index, const at::Tensor& gradient, bool check_finite);
  void adopt(std::size_t index, at::Tensor& gradient) const;

  // Whether `gradient` is the mean of an earlier pass, to which another pass cannot be added: this
  // rank alone has it.
  bool is_mean(std::size_t index, const at::Tensor& gradient) const;

  // Blocking: a bucket's gradients become means on their owners, and are freed on the other ranks.
  void reduce(std::size_t bucket);

  // Of every gradient that was taken and is owned.
  void multiply(double factor) const;

  // Forgets what was taken; `means`: it has become means.
  void release(bool means);

  void abort() const;

 private:
  void reduce_in_place(std::size_t index);
  bool is_owned(std::size_t index) const { return owners_[index] == group_.rank(); }

  const NamedTensors& parameters_;
  const std::vector<int> owners_;
  const ProcessGroup group_;
  BucketAssignment assignment_;
  std::vector<std::size_t> bucket_of_;
  std::vector<at::Tensor> places_;  // What was taken, by parameter.
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> means_;
};

}  // namespace lockstep
