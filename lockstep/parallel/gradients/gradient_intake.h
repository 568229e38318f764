// Passes gradients from the hooks to a GradientSink, bucket by bucket. The first passes record the
// order of arrival and, with a static graph, how often each gradient comes.
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
#include "lockstep/parallel/gradients/bucket_assignment.h"
#include "lockstep/parallel/gradients/distributed_data_parallel_options.h"
#include "lockstep/parallel/gradients/gradient_hook.h"
#include "lockstep/parallel/gradients/gradient_sink.h"
#include "lockstep/parallel/gradients/pass_report.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep::parallel {

// How often each gradient is expected in a pass: once or, with a static graph, as in the first
// averaged pass.
class GradientCounts {
 public:
  enum class Arrival : std::uint8_t {
    recorded,    // In the pass that records the counts: it may come again.
    incomplete,  // It is expected again.
    complete,
    repeated,  // It came more often than expected.
  };

  GradientCounts(std::size_t parameters, bool static_graph)
      : static_(static_graph),
        recording_(static_graph),
        expected_(parameters, static_graph ? 0 : 1),
        remaining_(expected_) {}

  void begin_pass();
  Arrival note(std::size_t index);

  // After an averaged pass.
  void end_pass() { recording_ = false; }

  bool is_recording() const { return recording_; }

  bool is_known() const { return static_ && !recording_; }

  bool expects(std::size_t index) const { return expected_[index] > 0; }
  bool misses(std::size_t index) const { return remaining_[index] > 0; }

 private:
  const bool static_;
  bool recording_;
  std::vector<int> expected_;   // In a whole pass.
  std::vector<int> remaining_;  // In the current pass.
};

class GradientIntake {
 public:
  // Collective. `parameters` and `hooks`, which determine whose gradients are taken, outlive this
  // object.
  GradientIntake(const NamedTensors& parameters, const ParameterHooks& hooks,
                 std::unique_ptr<GradientSink> sink, const DistributedDataParallelOptions& options);

  // Collective, before the first pass.
  void set_sink(std::unique_ptr<GradientSink> sink);

  // Collective once, after the first pass: orders buckets by the arrival of rank 0's gradients.
  void rebuild_buckets(const ProcessGroup& group);

  // `early`: as GradientSink's. A shadow pass reads no gradient and records no order.
  void begin_pass(bool early, bool is_shadow = false);

  // `incoming`, or its sum with the previous `.grad`, has arrived.
  // Errors: unsupported for a gradient on another device, and if it is sparse or dense unlike the
  // sink's.
  void add(std::size_t index, const at::Tensor& incoming);

  void complete();

  // As GradientSink's, after all ranks have agreed on the pass.
  void finish(const PassReports& reports, double factor);

  // Drops the pass. All gradients are then undefined.
  void drop() noexcept;

  const PassReport& report() const { return report_; }
  const GradientCounts& counts() const { return counts_; }
  const GradientSink& sink() const { return *sink_; }
  const BucketAssignment& assignment() const { return order_.assignment(); }
  bool has_passed() const { return has_passed_; }
  c10::Device device() const { return device_; }
  BackwardTimes times() const;

 private:
  void take(std::size_t index, const at::Tensor& incoming);
  void note(std::size_t index, Taken taken);
  void finish_bucket();

  const NamedTensors& parameters_;
  const ParameterHooks& hooks_;
  const c10::Device device_;  // The parameters' device at construction.
  std::unique_ptr<GradientSink> sink_;
  BucketOrder order_;
  GradientCounts counts_;
  BucketProgress progress_;
  bool early_ = false;  // The current pass starts buckets as they complete.
  bool is_shadow_ = false;
  PassReport report_;  // The current pass, without its number and samples.
  bool has_passed_ = false;
  std::chrono::nanoseconds copy_time_{};
  std::chrono::nanoseconds wait_time_{};
};

}  // namespace lockstep::parallel
