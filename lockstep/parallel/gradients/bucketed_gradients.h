// Averages gradients over all ranks, bucket by bucket on a thread during backward(), or all at its
// end. On a CUDA device the work is enqueued.
//
// Thread safety: as GradientSink.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/gradients/bucket_assignment.h"
#include "lockstep/parallel/gradients/bucket_reduction.h"
#include "lockstep/parallel/gradients/communication_hook.h"
#include "lockstep/parallel/gradients/finite_check.h"
#include "lockstep/parallel/gradients/gradient_memory.h"
#include "lockstep/parallel/gradients/gradient_sink.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep::parallel {

// The memory of the buckets, and its arithmetic.
//
// Small gradients are scaled by 1 / world_size and copied side by side into registered memory: one
// all_reduce sums all of a type. A large gradient is averaged in place in the memory of pool(),
// elsewhere through the ranks' staging buffers. On a CUDA device all gradients are copied.
// write_mean() copies the mean to `.grad`. With `as_views`, `.grad` is a view of the bucket.
class GradientBuckets {
 public:
  struct Settings {
    bool for_hook = false;  // All gradients are in buckets, unscaled.
    bool as_views = false;
  };

  // Collective. `parameters`, which outlive this object, and `assignment` are the same on all
  // ranks. Types can be reduced, and all devices are the same.
  GradientBuckets(const NamedTensors& parameters, std::vector<GradientForm> forms,
                  const BucketAssignment& assignment, const ProcessGroup& group, Settings settings);

  const std::vector<GradientBucket>& buckets() const { return buckets_; }

  // Null if there are no large gradients.
  const std::shared_ptr<GradientPool>& pool() const { return pool_; }

  // In the buckets and in the pool.
  const std::vector<RegisteredMemory>& memory() const { return memory_; }

  // Takes the gradient of parameter `index`, or zeros if undefined. If `gradient` shares memory
  // with `incoming`, autograd's tensor, and other tensors use it too, `gradient` becomes a copy.
  // Returns false if `check_finite` found that it is not finite; on a device it is not checked.
  bool take(std::size_t index, at::Tensor& gradient, const at::Tensor& incoming, bool check_finite);

  // For a parameter without a gradient in this pass. `gradient` keeps its value until write_mean().
  bool take_left_out(std::size_t index, at::Tensor& gradient, bool check_finite);

  // In place; an undefined `gradient` becomes a new tensor.
  void write_mean(std::size_t index, at::Tensor& gradient) const;

  // The taken gradient, until it is averaged.
  const at::Tensor& taken(std::size_t index) const { return places_[index]; }

  // Blocking: gradients of one bucket, or of all, become their means.
  void average(std::size_t bucket) const;
  void average_all() const;

  void multiply(double factor) const;

  // Releases gradients outside the buckets.
  void release();

 private:
  // All buckets of one type.
  struct Region {
    at::Tensor flat;
    std::string label;
  };

  bool is_copied(std::size_t index) const;
  bool is_view(std::size_t index, const at::Tensor& gradient) const;
  at::Tensor view(std::size_t index) const;
  bool copy(const at::Tensor& gradient, const at::Tensor& place) const;
  std::size_t copied_bytes(const std::vector<std::size_t>& indices) const;
  void fill_region(at::ScalarType dtype, const BucketAssignment& assignment);
  void fill_bucket(std::size_t bucket, const BucketMemory& memory, std::size_t begin,
                   const std::vector<std::size_t>& indices);
  void average_in_place(std::size_t index) const;

  const NamedTensors& parameters_;
  const ProcessGroup group_;
  const c10::Device device_;
  const Settings settings_;
  const double scale_;
  const std::vector<GradientForm> forms_;
  std::vector<Region> regions_;
  std::vector<RegisteredMemory> memory_;
  std::vector<GradientBucket> buckets_;
  std::vector<std::vector<std::size_t>> in_place_;  // By bucket: gradients that are not copied.
  std::shared_ptr<GradientPool> pool_;
  // By parameter: a part of the bucket, or the taken gradient if not copied. Never given to
  // callers, because set_data() on a tensor of a bucket would replace the bucket's memory.
  std::vector<at::Tensor> places_;
};

class BucketedGradients final : public GradientSink {
 public:
  struct Settings {
    bool overlapped;  // Reduces buckets early, if begin() allows it.
    bool check_finite;
    bool as_views = false;
    CommunicationHook hook = {};  // Replaces the all_reduce.
  };

  // `parameters` outlive this object and are on one device. If overlapped, and with a hook, nothing
  // else uses `group`.
  BucketedGradients(const NamedTensors& parameters, const ProcessGroup& group, Settings settings);
  ~BucketedGradients() override;
  BucketedGradients(const BucketedGradients&) = delete;
  BucketedGradients& operator=(const BucketedGradients&) = delete;

  void assign(const BucketAssignment& assignment) override;
  bool begin(bool early) override;
  Taken take(std::size_t index, at::Tensor& gradient, const at::Tensor& incoming) override;
  Taken take_left_out(std::size_t index, at::Tensor& gradient) override;
  void start(std::size_t bucket) override;
  std::optional<std::size_t> wait() override;
  void finish(const PassReports& reports, double factor) override;
  void release() noexcept override;
  std::shared_ptr<GradientPool> pool() const override { return buckets_->pool(); }
  std::vector<RegisteredMemory> memory() const override { return buckets_->memory(); }
  std::chrono::nanoseconds reduce_time() const override { return reduction_.time(); }

 private:
  void enqueue_check(std::size_t bucket);
  void reduce(std::size_t bucket) const;
  void reduce_all() const;
  void call_hook(GradientBucket bucket) const;

  const NamedTensors& parameters_;
  const ProcessGroup group_;
  const Settings settings_;
  const c10::Device device_;  // The device at construction.
  const std::vector<GradientForm> forms_;
  BucketAssignment assignment_;
  std::unique_ptr<GradientBuckets> buckets_;
  bool early_ = false;                 // In the current pass.
  std::vector<std::size_t> taken_;     // Gradients that arrived in the current pass.
  std::vector<std::size_t> left_out_;  // Gradients that did not.
  FiniteCheck finite_check_;           // On a device; the reducing thread, if any, enqueues it.
  BucketReduction reduction_;          // Last: its thread uses the other members.
};

}  // namespace lockstep::parallel
