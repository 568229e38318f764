// The way of a pass's gradients from the hooks to a GradientSink, bucket by bucket.
//
// Knows which gradients came and which buckets that completes. The order in which they come, and
// how often each one does with a static graph, are learned from the first passes.
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

// How often each gradient comes in a backward pass, and how often it has still to come. A static
// graph's counts are learned from the first pass that is averaged. Otherwise each comes once.
class GradientCounts {
 public:
  enum class Arrival : std::uint8_t {
    recorded,    // In the pass that the counts are learned from: it may come again.
    incomplete,  // It comes again.
    complete,
    repeated,  // It came more often than it should.
  };

  GradientCounts(std::size_t parameters, bool static_graph)
      : static_(static_graph),
        recording_(static_graph),
        expected_(parameters, static_graph ? 0 : 1),
        remaining_(expected_) {}

  void begin_pass();
  Arrival note(std::size_t index);

  // The pass was averaged.
  void end_pass() { recording_ = false; }

  bool is_recording() const { return recording_; }

  // Whether the counts of a static graph are known.
  bool is_known() const { return static_ && !recording_; }

  bool expects(std::size_t index) const { return expected_[index] > 0; }
  bool misses(std::size_t index) const { return remaining_[index] > 0; }

 private:
  const bool static_;
  bool recording_;
  std::vector<int> expected_;   // In a whole pass.
  std::vector<int> remaining_;  // In the one under way.
};

// The intake of one Reducer.
class GradientIntake {
 public:
  // Collective. `parameters` and `hooks`, which tell whose gradients are taken, outlive this.
  GradientIntake(const NamedTensors& parameters, const ParameterHooks& hooks,
                 std::unique_ptr<GradientSink> sink, const DistributedDataParallelOptions& options);

  // Collective, before the first pass.
  void set_sink(std::unique_ptr<GradientSink> sink);

  // Collective once, after the first pass: buckets in the order in which rank 0's gradients came.
  void rebuild_buckets(const ProcessGroup& group);

  // `early`: as GradientSink's. A shadow pass reads no gradient and teaches no order.
  void begin_pass(bool early, bool is_shadow = false);

  // A gradient has come: `incoming`, or the sum of it and what `.grad` was before.
  // Errors: unsupported for one that is sparse or dense where the sink expects the other, or on
  // another device.
  void add(std::size_t index, const at::Tensor& incoming);

  // Starts the buckets that the gradients have not completed, and waits for all.
  void complete();

  // All ranks have agreed on the pass: as GradientSink's.
  void finish(const PassReports& reports, double factor);

  // Drops the pass; all gradients are undefined then.
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
  const c10::Device device_;  // On which parameters were when this was made.
  std::unique_ptr<GradientSink> sink_;
  BucketOrder order_;
  GradientCounts counts_;
  BucketProgress progress_;
  bool early_ = false;  // The pass under way starts buckets as they complete.
  bool is_shadow_ = false;
  PassReport report_;  // The pass under way, without its number and samples.
  bool has_passed_ = false;
  std::chrono::nanoseconds copy_time_{};
  std::chrono::nanoseconds wait_time_{};
};

}  // namespace lockstep::parallel
