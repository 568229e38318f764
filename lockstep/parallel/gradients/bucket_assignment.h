// Assignment of gradients to buckets by the rules of PyTorch 2.13
// (torch/nn/parallel/distributed.py, BucketCapacityConfig; c10d/reducer.cpp,
// compute_bucket_assignment_by_size).

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

// The indices of each bucket's tensors, in their order in the bucket.
using BucketAssignment = std::vector<std::vector<std::size_t>>;

struct BucketLimits {
  std::vector<std::size_t> first;    // Bytes of each bucket until the order of arrival is known.
  std::vector<std::size_t> rebuilt;  // Bytes afterwards; the last applies to all later buckets.
};

// `cap_mb`: MiB of a bucket, 25 by default; the first bucket then closes at 1 MiB, so that
// communication starts early. `caps_mb`: the MiB of each bucket in turn, instead of `cap_mb`.
// `whole_at_first`: a single bucket of any size until the order of arrival is known.
// Errors: misuse if both are given, and for a number that is not positive.
LOCKSTEP_API BucketLimits bucket_limits(std::optional<double> cap_mb,
                                        const std::vector<double>& caps_mb, bool whole_at_first);

// Puts tensors in order into buckets of one type and device. The tensor with which a bucket reaches
// its limit is the bucket's last. Tensor i has index indices[i], or i without indices. Buckets are
// in the order in which they were closed, unfinished ones last; without indices, in the order of
// their first tensor.
LOCKSTEP_API BucketAssignment
compute_bucket_assignment_by_size(at::TensorList tensors, const std::vector<std::size_t>& limits,
                                  const std::vector<std::size_t>& indices = {});

}  // namespace lockstep
