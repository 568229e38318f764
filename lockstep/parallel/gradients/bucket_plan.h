// Buckets of gradients, and their progress in a pass, after PyTorch 2.13
// (torch/nn/parallel/distributed.py, BucketCapacityConfig; c10d/reducer.cpp,
// compute_bucket_assignment_by_size).
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/gradients/distributed_data_parallel_options.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep::parallel {

struct BucketLimits {
  std::vector<std::size_t> first;    // Bytes of each until the order of arrival is known.
  std::vector<std::size_t> rebuilt;  // Afterwards. In both, the last applies to all later ones.
};

// As the options bucket_cap_mb and bucket_caps_mb. `whole_at_first`: without `caps_mb`, one
// bucket per type and device until the order of arrival is known.
// Errors: misuse if both are given, and for a number that is not positive.
LOCKSTEP_API BucketLimits bucket_limits(std::optional<double> cap_mb,
                                        const std::vector<double>& caps_mb, bool whole_at_first);

// Puts tensors in order into buckets of one type and device. A bucket ends with the tensor that
// reaches its limit. Tensor i has index indices[i], or i. Buckets are in the order of closing,
// unfinished ones last; without indices, by their first tensor. A `sparse` tensor has its own
// bucket.
LOCKSTEP_API BucketAssignment compute_bucket_assignment_by_size(
    at::TensorList tensors, const std::vector<std::size_t>& limits,
    const std::vector<std::size_t>& indices = {}, const std::vector<bool>& sparse = {});

// Parameters are first assumed to arrive in reverse order, once per pass. The first averaged pass
// records the order for rebuilt(); with a static graph, it counts gradients, and the second records
// it. Without given buckets, share_parameters prevents that; so does find_unused_parameters without
// a static graph.
class BucketPlan {
 public:
  enum class Arrival : std::uint8_t {
    recorded,    // In the pass that records the counts.
    incomplete,  // It is expected again.
    complete,
    repeated,  // It came more often than expected.
  };

  // `given` buckets are only reordered.
  BucketPlan(const NamedTensors& parameters, const DistributedDataParallelOptions& options,
             std::optional<BucketAssignment> given, std::vector<bool> sparse);

  const BucketAssignment& assignment() const { return assignment_; }

  // The first call after the order was recorded is collective, and returns buckets in the order of
  // arrival on rank 0, unless equal to assignment().
  std::optional<BucketAssignment> rebuilt(const NamedTensors& parameters,
                                          const ProcessGroup& group);
  void assign(BucketAssignment assignment);

  // `awaited`: by parameter, whether its bucket waits for it. `keeps_order`: the last order stays.
  void begin_pass(std::vector<bool> awaited, bool keeps_order);

  Arrival note_arrival(std::size_t index);
  void note_taken(std::size_t index);

  void end_pass();

  // Whether the counts of arrivals are being recorded, or known.
  bool is_recording_counts() const { return is_recording_counts_; }
  bool has_counts() const { return is_static_ && !is_recording_counts_; }
  bool expects(std::size_t index) const { return parameters_[index].expected > 0; }
  bool misses(std::size_t index) const { return parameters_[index].remaining > 0; }

  bool is_taken(std::size_t index) const { return parameters_[index].is_taken; }

  bool is_open(std::size_t index) const { return parameters_[index].bucket >= next_; }

  std::size_t next() const { return next_; }
  bool has_next() const { return next_ < assignment_.size(); }
  bool is_next_complete() const { return has_next() && pending_[next_] == 0; }
  void advance() { ++next_; }

 private:
  struct Parameter {
    std::size_t bucket = 0;
    int expected = 1;         // Gradients in a whole pass.
    int remaining = 1;        // In the current pass.
    bool is_awaited = false;  // In the current pass, until it is taken.
    bool is_taken = false;
  };

  BucketAssignment by_arrival(const std::vector<std::size_t>& order) const;

  const bool is_given_;
  const bool is_static_;
  const std::vector<bool> sparse_;
  const BucketLimits limits_;
  BucketAssignment assignment_;
  std::vector<Parameter> parameters_;
  std::vector<std::size_t> pending_;  // By bucket: awaited gradients.
  std::size_t next_ = 0;
  std::vector<std::size_t> arrival_;  // In the current pass.
  bool is_recording_counts_;
  bool is_recording_order_;  // Until rebuilt().
  bool is_rebuild_due_ = false;
};

}  // namespace lockstep::parallel
