// Which parameters' gradients travel together: the rules of PyTorch 2.13 (torch/nn/parallel/
// distributed.py, BucketCapacityConfig; c10d/reducer.cpp, compute_bucket_assignment_by_size).

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

// The indices of each bucket's tensors, in the order in which they lie in it.
using BucketAssignment = std::vector<std::vector<std::size_t>>;

struct BucketLimits {
  std::vector<std::size_t> first;    // Bytes of each bucket before the order of arrival is known,
  std::vector<std::size_t> rebuilt;  // and once it is. The last one holds for all that follow.
};

// `cap_mb`: MiB of a bucket, 25 by default, where the first one is closed at 1 MiB already so that
// communication starts early. `caps_mb`: of each bucket in turn, instead. `whole_at_first`: one
// bucket, however large, until the order of arrival is known.
// Errors: misuse for both, and for a number that is not positive.
LOCKSTEP_API BucketLimits bucket_limits(std::optional<double> cap_mb,
                                        const std::vector<double>& caps_mb, bool whole_at_first);

// Puts tensors into buckets of one type and device in turn; the tensor with which a bucket reaches
// its limit is its last. Tensor i is known as indices[i], or as i when there are none. Buckets are
// in the order in which they were closed, the unfinished ones last; without indices, in the order
// of their first tensor.
LOCKSTEP_API BucketAssignment
compute_bucket_assignment_by_size(at::TensorList tensors, const std::vector<std::size_t>& limits,
                                  const std::vector<std::size_t>& indices = {});

}  // namespace lockstep
