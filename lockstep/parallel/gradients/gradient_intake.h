// Passes gradients from hooks to a GradientSink, by buckets.
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/gradients/bucket_plan.h"
#include "lockstep/parallel/gradients/distributed_data_parallel_options.h"
#include "lockstep/parallel/gradients/gradient_hook.h"
#include "lockstep/parallel/gradients/gradient_sink.h"
#include "lockstep/parallel/gradients/pass_report.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep::parallel {

class GradientIntake {
 public:
  // Collective. `parameters` and `hooks` outlive this object.
  GradientIntake(const NamedTensors& parameters, const ParameterHooks& hooks,
                 std::unique_ptr<GradientSink> sink, const DistributedDataParallelOptions& options);

  // Collective, before the first pass.
  void set_sink(std::unique_ptr<GradientSink> sink);

  // As BucketPlan::rebuilt().
  void rebuild_buckets(const ProcessGroup& group);

  // `early`: as GradientSink's. A shadow pass reads no gradients and records no order.
  void begin_pass(bool early, bool is_shadow = false);

  // Errors: misuse after its bucket was started. unsupported for a gradient on another device, and
  // for a sparse or dense one unlike the sink's.
  void add(std::size_t index, const at::Tensor& incoming);

  void complete();

  // As GradientSink's.
  void finish(const PassReports& reports, double factor);

  // Drops the pass; all gradients become undefined.
  void drop() noexcept;

  const PassReport& report() const { return report_; }
  const BucketPlan& plan() const { return plan_; }
  const GradientSink& sink() const { return *sink_; }
  const SinkTraits& traits() const { return traits_; }
  bool has_passed() const { return has_passed_; }
  c10::Device device() const { return device_; }
  BackwardTimes times() const;

 private:
  bool is_sparse(std::size_t index) const {
    return !traits_.is_sparse.empty() && traits_.is_sparse[index];
  }
  void take(std::size_t index, const at::Tensor& incoming);
  void note(std::size_t index, Taken taken);
  void finish_bucket();

  const NamedTensors& parameters_;
  const ParameterHooks& hooks_;
  const c10::Device device_;  // At construction.
  std::unique_ptr<GradientSink> sink_;
  SinkTraits traits_;  // The sink's.
  BucketPlan plan_;
  bool early_ = false;  // Starts buckets as they complete.
  bool is_shadow_ = false;
  PassReport report_;  // The current pass: only non_finite, repeated and kept_mean.
  bool has_passed_ = false;
  std::chrono::nanoseconds copy_time_{};
  std::chrono::nanoseconds wait_time_{};
};

}  // namespace lockstep::parallel
