// Gradients of all parameters, bucket by bucket, in memory that every rank of the host has mapped,
// so that summing them copies nothing. Buckets of one element type lie side by side: where all of
// them are summed at once, one all_reduce does it.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/bucket_assignment.h"
#include "lockstep/parallel/gradient_bucket.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep {

class GradientBuckets {
 public:
  // Collective. `parameters` and `assignment` are the same on all ranks; types can be reduced.
  GradientBuckets(const NamedTensors& parameters, const BucketAssignment& assignment,
                  const ProcessGroup& group);

  // Where the gradient of parameter `index` lies: of its shape, and of its strides when it is
  // dense, which is what AccumulateGrad and the optimizers' kernels want.
  const at::Tensor& view(std::size_t index) const { return views_[index]; }

  // The bucket in which it lies.
  std::size_t bucket_of(std::size_t index) const { return bucket_of_[index]; }

  const std::vector<GradientBucket>& buckets() const { return buckets_; }

  // Blocking: every gradient becomes its sum over all ranks.
  void all_reduce(const ProcessGroup& group) const;

  // Of every gradient.
  void multiply(double factor) const;
  void zero() const;

 private:
  // All buckets of one type.
  struct Region {
    at::Tensor flat;
    std::string tag;
  };

  void fill_region(at::ScalarType dtype, const NamedTensors& parameters,
                   const BucketAssignment& assignment, const ProcessGroup& group);
  void fill_bucket(std::size_t bucket, const RegisteredMemory& memory, std::size_t begin,
                   const NamedTensors& parameters, const std::vector<std::size_t>& indices);

  std::vector<Region> regions_;
  std::vector<GradientBucket> buckets_;
  std::vector<at::Tensor> views_;
  std::vector<std::size_t> bucket_of_;
};

// Errors: unsupported for a parameter, named, whose gradient cannot be averaged here.
void require_reducible_gradient(const std::string& name, const at::Tensor& parameter);

}  // namespace lockstep
