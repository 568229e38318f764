// Gradients that are averaged over all ranks bucket by bucket: during backward() on a thread, or
// all at once at its end. In a CUDA device's memory they are enqueued.
//
// Thread safety: as GradientSink.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "lockstep/parallel/gradients/bucket_reduction.h"
#include "lockstep/parallel/gradients/communication_hook.h"
#include "lockstep/parallel/gradients/finite_check.h"
#include "lockstep/parallel/gradients/gradient_buckets.h"
#include "lockstep/parallel/gradients/gradient_sink.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep {

class BucketedGradients final : public GradientSink {
 public:
  struct Settings {
    bool overlapped;  // Buckets are reduced early, where begin() allows it.
    bool check_finite;
    CommunicationHook hook = {};  // Replaces the all_reduce.
  };

  // `parameters`, which outlive this, are on one device. `group` is its own if overlapped, and for
  // a hook.
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
  bool allows_others() const override { return true; }
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
  const c10::Device device_;  // On which they were when this was made.
  BucketAssignment assignment_;
  std::unique_ptr<GradientBuckets> buckets_;
  bool early_ = false;                 // In the pass under way.
  std::vector<std::size_t> left_out_;  // In it, so far.
  FiniteCheck finite_check_;           // On a device; the thread enqueues it if there is one.
  BucketReduction reduction_;          // Last, as its thread uses the others.
};

}  // namespace lockstep
