// Averages gradients over all ranks, bucket by bucket on a thread during backward(), or all at its
// end.
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
#include "lockstep/parallel/gradients/bucket_plan.h"
#include "lockstep/parallel/gradients/bucket_reduction.h"
#include "lockstep/parallel/gradients/communication_hook.h"
#include "lockstep/parallel/gradients/finite_check.h"
#include "lockstep/parallel/gradients/gradient_memory.h"
#include "lockstep/parallel/gradients/gradient_sink.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep::parallel {

// Small gradients are scaled by 1 / world_size and copied side by side into registered memory. One
// all_reduce sums a bucket or, at the end of the pass, all of a type. Large gradients are averaged
// in place in pool(), or through staging buffers; on a CUDA device they are copied, too. finish()
// copies means to `.grad`. With `as_views`, `.grad` is a view of the bucket.
class BucketedGradients final : public GradientSink {
 public:
  struct Settings {
    bool overlapped;
    bool check_finite;
    bool as_views = false;

    // Replaces the all_reduce. All gradients are then in buckets, unscaled.
    CommunicationHook hook = {};
  };

  // `parameters` outlive this object and are on one device. If overlapped or with a hook, nothing
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
  std::shared_ptr<GradientPool> pool() const override { return buckets_.pool; }
  std::vector<RegisteredMemory> memory() const override { return buckets_.memory; }
  std::chrono::nanoseconds reduce_time() const override { return reduction_.time(); }

 private:
  struct Region {
    at::Tensor flat;
    std::string label;
  };

  struct Buckets {
    BucketAssignment assignment = {};
    std::vector<GradientBucket> all = {};
    std::vector<Region> regions = {};
    std::vector<RegisteredMemory> memory = {};            // Includes the pool.
    std::vector<std::vector<std::size_t>> in_place = {};  // By bucket: gradients not copied.
    std::shared_ptr<GradientPool> pool = {};              // Null if there are no large gradients.

    // By parameter: a part of the bucket, or the taken gradient if not copied. Callers get none:
    // set_data() would replace the bucket's memory.
    std::vector<at::Tensor> places = {};
  };

  Buckets allocate(const BucketAssignment& assignment) const;
  void add_region(at::ScalarType dtype, Buckets& buckets) const;
  void fill_bucket(std::size_t b, const BucketMemory& memory, std::size_t begin,
                   Buckets& buckets) const;
  bool is_copied(std::size_t index) const;
  std::size_t copied_bytes(const std::vector<std::size_t>& indices) const;

  bool copy(const at::Tensor& gradient, const at::Tensor& place) const;
  bool is_view(std::size_t index, const at::Tensor& gradient) const;
  at::Tensor view(std::size_t index) const;
  void write_mean(std::size_t index, at::Tensor& gradient) const;
  void forget_places();

  void enqueue_check(std::size_t bucket);
  void reduce(std::size_t bucket) const;
  void reduce_all() const;
  void average_in_place(std::size_t index) const;
  void call_hook(GradientBucket bucket) const;
  void multiply(double factor) const;

  const NamedTensors& parameters_;
  const ProcessGroup group_;
  const Settings settings_;
  const c10::Device device_;  // The device at construction.
  const std::vector<GradientForm> forms_;
  Buckets buckets_;
  bool early_ = false;              // In the current pass.
  std::vector<std::size_t> taken_;  // In the current pass.
  std::vector<std::size_t> left_out_;
  FiniteCheck finite_check_;   // On a device; the reducing thread, if any, enqueues it.
  BucketReduction reduction_;  // Last: its thread uses the other members.
};

}  // namespace lockstep::parallel
