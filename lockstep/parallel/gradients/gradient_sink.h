// Strategies that reduce the gradients of a backward pass and set `.grad`
// (docs/internals/gradients.md).
//
// Thread safety: none, but a sink may have a thread that works on started buckets.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/gradients/bucket_plan.h"
#include "lockstep/parallel/gradients/gradient_memory.h"
#include "lockstep/parallel/gradients/pass_report.h"

namespace lockstep::parallel {

enum class Taken : std::uint8_t {
  fine,  // Or not checked.
  non_finite,
  old_mean,  // Includes an earlier pass's mean that only this rank has: misuse on all ranks.
};

struct SinkTraits {
  // The sink's buckets, in any order. Empty: PyTorch's.
  std::optional<BucketAssignment> own_buckets = {};

  // By parameter. Empty: all are dense.
  std::vector<bool> is_sparse = {};

  // Whether it always reduces on a separate thread.
  bool is_overlapped = false;

  // Whether ranks wait for each other before the end of a pass. A rank must then start all buckets
  // before it enters a barrier.
  bool waits_in_pass = false;
};

class GradientSink {
 public:
  virtual ~GradientSink() = default;

  // Constant.
  virtual SinkTraits traits() const { return {}; }

  // Collective, between passes.
  virtual void assign(const BucketAssignment& assignment) = 0;

  // `early`: buckets may be reduced before the pass is complete. Returns whether to start each
  // bucket once its gradients have arrived, or all at the end.
  // Errors: misuse if the sink cannot take gradients of this pass.
  virtual bool begin(bool early) = 0;

  // Takes `gradient`, or zeros if undefined. May replace it by the tensor for the result, or by an
  // undefined one. `gradient` may share the memory of `incoming`, autograd's tensor.
  virtual Taken take(std::size_t index, at::Tensor& gradient, const at::Tensor& incoming) = 0;

  // As take(), if the gradient did not arrive, or may be complete only at the end of the pass.
  // `gradient` changes only in finish(), if some rank has used the parameter.
  virtual Taken take_left_out(std::size_t index, at::Tensor& gradient) = 0;

  // All gradients of `bucket` were taken. Called for each bucket, in the order of assign().
  virtual void start(std::size_t bucket) = 0;

  // Blocking: until all started work is done. Returns the first parameter that a device's check
  // found to be non-finite. Errors: those of the work.
  virtual std::optional<std::size_t> wait() = 0;

  // Blocking, collective, after all ranks have agreed. Multiplies results by `factor`.
  virtual void finish(const PassReports& reports, double factor) = 0;

  // Drops the pass, at any point. Blocking: until all started work is done.
  virtual void release() noexcept = 0;

  // An exception has ended the pass on this rank only. Returns true if no rank can reach the pass's
  // end; the sink has then aborted its groups with `reason`.
  virtual bool cut_short(std::string_view /*reason*/) const noexcept { return false; }

  // For large gradients. May be null.
  virtual std::shared_ptr<GradientPool> pool() const = 0;

  // Registered memory in which gradients may lie.
  virtual std::vector<RegisteredMemory> memory() const = 0;

  // Time of all reductions, on any thread.
  virtual std::chrono::nanoseconds reduce_time() const = 0;
};

}  // namespace lockstep::parallel
