// Buckets of gradients. Sizes and assignment follow PyTorch 2.13 (torch/nn/parallel/distributed.py,
// BucketCapacityConfig; c10d/reducer.cpp, compute_bucket_assignment_by_size).
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/gradients/distributed_data_parallel_options.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep::parallel {

struct BucketLimits {
  std::vector<std::size_t> first;    // Bytes of each bucket until the order of arrival is known.
  std::vector<std::size_t> rebuilt;  // Bytes afterwards; the last applies to all later buckets.
};

// `cap_mb`: MiB of a bucket, 25 by default; the first one then closes at 1 MiB, to start early.
// `caps_mb`: of each bucket in order. `whole_at_first`: one bucket until the order of arrival is
// known.
// Errors: misuse if both are given, and for a number that is not positive.
LOCKSTEP_API BucketLimits bucket_limits(std::optional<double> cap_mb,
                                        const std::vector<double>& caps_mb, bool whole_at_first);

// Puts tensors in order into buckets of one type and device. A bucket ends with the tensor that
// reaches its limit. Tensor i has index indices[i], or i. Buckets are ordered as they were closed,
// unfinished ones last; without indices, by their first tensor. A `sparse` tensor has its own
// bucket.
LOCKSTEP_API BucketAssignment compute_bucket_assignment_by_size(
    at::TensorList tensors, const std::vector<std::size_t>& limits,
    const std::vector<std::size_t>& indices = {}, const std::vector<bool>& sparse = {});

// The order in which gradients arrive, recorded in the first passes.
class BucketOrder {
 public:
  // Before the first pass, parameters are assumed to arrive in reverse order. `given` buckets are
  // only reordered. `sparse`: by parameter.
  BucketOrder(const NamedTensors& parameters, const DistributedDataParallelOptions& options,
              std::optional<BucketAssignment> given, std::vector<bool> sparse);

  const BucketAssignment& assignment() const { return assignment_; }
  std::size_t bucket_of(std::size_t index) const { return bucket_of_[index]; }

  void begin_pass();
  void note(std::size_t index);

  // After an averaged pass.
  void end_pass() { due_ = learns_; }

  // Whether learned() is due before the next pass.
  bool is_due() const { return due_; }

  // Collective, once: the buckets in the order in which rank 0's gradients arrived.
  BucketAssignment learned(const NamedTensors& parameters, const ProcessGroup& group);
  void assign(BucketAssignment assignment);

 private:
  BucketAssignment by_arrival(const std::vector<std::size_t>& order) const;

  const bool is_given_;
  const std::vector<bool> sparse_;
  BucketLimits limits_;
  BucketAssignment assignment_;
  std::vector<std::size_t> bucket_of_;  // By parameter.
  std::vector<std::size_t> arrival_;    // Parameters in the order of the current pass.
  bool learns_;                         // False after learned().
  bool due_ = false;
};

class BucketProgress {
 public:
  void begin_pass(std::size_t parameters, std::size_t buckets) {
    expected_.assign(parameters, false);
    taken_.assign(parameters, false);
    pending_.assign(buckets, 0);
    next_ = 0;
  }

  void expect(std::size_t index, std::size_t bucket) {
    expected_[index] = true;
    ++pending_[bucket];
  }

  void note_taken(std::size_t index, std::size_t bucket) {
    if (expected_[index] && !taken_[index]) --pending_[bucket];
    taken_[index] = true;
  }

  bool is_taken(std::size_t index) const { return taken_[index]; }

  bool is_open(std::size_t bucket) const { return bucket >= next_; }

  std::size_t next() const { return next_; }
  bool has_next() const { return next_ < pending_.size(); }
  bool is_next_complete() const { return has_next() && pending_[next_] == 0; }
  void advance() { ++next_; }

 private:
  std::vector<bool> expected_;        // By parameter.
  std::vector<bool> taken_;           // By parameter.
  std::vector<std::size_t> pending_;  // By bucket: gradients that have not arrived.
  std::size_t next_ = 0;
};

}  // namespace lockstep::parallel
