// Gradients on their way from autograd to their mean over all ranks, bucket by bucket.
//
// Small ones are copied, scaled by 1 / world_size, into memory that every rank of the host has
// mapped, where summing them copies nothing. Those of one element type lie side by side: where all
// are summed at once, one all_reduce does it. A large gradient is averaged where autograd has made
// it, and is never in memory or cache twice: half of it goes through the ranks' rooms
// (docs/algorithms.md), where a copy into registered memory would be of all of it.
// In a CUDA device's memory all are copied, side by side: there is no registered memory, no room.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/gradients/bucket_assignment.h"
#include "lockstep/parallel/gradients/bucket_memory.h"
#include "lockstep/parallel/gradients/gradient_bucket.h"
#include "lockstep/parallel/gradients/gradient_pool.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep {

class GradientBuckets {
 public:
  // Collective. `parameters` and `assignment` are the same on all ranks; types can be reduced, and
  // devices are one.
  // `for_hook`: all gradients, whatever their size and not scaled, lie in the buckets.
  // `parameters` outlive this.
  GradientBuckets(const NamedTensors& parameters, const BucketAssignment& assignment,
                  const ProcessGroup& group, bool for_hook);

  const std::vector<GradientBucket>& buckets() const { return buckets_; }

  // For large gradients; null where there are none.
  const std::shared_ptr<GradientPool>& pool() const { return pool_; }

  // All registered memory that gradients may lie in: of the buckets, and the pool's.
  const std::vector<RegisteredMemory>& memory() const { return memory_; }

  // Takes the gradient of parameter `index`, or zeros when it is undefined, and makes `gradient`
  // the tensor that will be the mean. `incoming` is what autograd has made, in whose memory it may
  // lie. Returns false if `check_finite` found that it is not finite; on a device it is not looked
  // at.
  bool take(std::size_t index, at::Tensor& gradient, const at::Tensor& incoming, bool check_finite);

  // The same for a rank whose pass has left the parameter out: `gradient` keeps its value until
  // adopt() makes it the mean, if it ever does.
  bool take_left_out(std::size_t index, at::Tensor& gradient, bool check_finite);
  void adopt(std::size_t index, at::Tensor& gradient) const { gradient = places_[index]; }

  // What take() or take_left_out() has made of it, until it is averaged.
  const at::Tensor& taken(std::size_t index) const { return places_[index]; }

  // Blocking: what was taken becomes its mean; of one bucket, or of all.
  void average(std::size_t bucket) const;
  void average_all() const;

  // Of every gradient that was taken.
  void multiply(double factor) const;

  // Forgets what was taken, but for what lies in the buckets.
  void release();

 private:
  // All buckets of one type.
  struct Region {
    at::Tensor flat;
    std::string label;
  };

  bool is_copied(std::size_t index) const;
  bool copy(const at::Tensor& gradient, const at::Tensor& place) const;
  std::size_t copied_bytes(const std::vector<std::size_t>& indices) const;
  void fill_region(at::ScalarType dtype, const BucketAssignment& assignment);
  void fill_bucket(std::size_t bucket, const BucketMemory& memory, std::size_t begin,
                   const std::vector<std::size_t>& indices);
  void average_in_place(std::size_t index) const;

  const NamedTensors& parameters_;
  const ProcessGroup group_;
  const c10::Device device_;
  const bool for_hook_;
  const double scale_;  // Of what is copied.
  std::vector<Region> regions_;
  std::vector<RegisteredMemory> memory_;
  std::vector<GradientBucket> buckets_;
  std::vector<std::vector<std::size_t>> in_place_;  // By bucket: whose gradients are not copied.
  std::shared_ptr<GradientPool> pool_;
  std::vector<at::Tensor> places_;  // By parameter; of those not copied, what was taken.
};

// Errors: unsupported for a parameter, named, whose gradient cannot be averaged here.
void require_reducible_gradient(const std::string& name, const at::Tensor& parameter);

}  // namespace lockstep
