// The order in which gradients come, which the first passes teach, and the buckets made by it.
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/gradients/bucket_assignment.h"
#include "lockstep/parallel/gradients/distributed_data_parallel_options.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep {

class BucketOrder {
 public:
  // Before the first pass: gradients tend to come from the last on.
  BucketOrder(const NamedTensors& parameters, const DistributedDataParallelOptions& options);

  const BucketAssignment& assignment() const { return assignment_; }
  std::size_t bucket_of(std::size_t index) const { return bucket_of_[index]; }

  void begin_pass();
  void note(std::size_t index);

  // The pass was averaged.
  void end_pass() { due_ = learns_; }

  // Whether learned() is to be called before the next pass.
  bool is_due() const { return due_; }

  // Collective, once: the buckets by the order in which rank 0's gradients came.
  BucketAssignment learned(const NamedTensors& parameters, const ProcessGroup& group);
  void assign(BucketAssignment assignment);

 private:
  BucketLimits limits_;
  BucketAssignment assignment_;
  std::vector<std::size_t> bucket_of_;  // By parameter.
  std::vector<std::size_t> arrival_;    // Parameters in the order of the pass under way.
  bool learns_;                         // No longer after learned().
  bool due_ = false;
};

}  // namespace lockstep
