// Strategies that reduce the gradients of a backward pass and set `.grad`.
//
// docs/internals/gradients.md lists the order of calls. release() ends a pass at any point.
//
// Thread safety: none, but a sink may have a thread that works on the started buckets.

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
#include "lockstep/parallel/gradients/bucket_assignment.h"
#include "lockstep/parallel/gradients/gradient_memory.h"
#include "lockstep/parallel/gradients/pass_report.h"

namespace lockstep::parallel {

// The state of a gradient when it was taken.
enum class Taken : std::uint8_t {
  fine,        // Finite, or not checked.
  non_finite,  // An element is infinite or NaN.
  old_mean,    // The mean of an earlier pass, which only this rank has: nothing can be added to it.
};

class GradientSink {
 public:
  virtual ~GradientSink() = default;

  // Buckets that the sink defines, in any order. Empty: PyTorch's.
  virtual std::optional<BucketAssignment> own_buckets() const { return {}; }

  virtual bool is_sparse(std::size_t /*index*/) const { return false; }

  // Whether it always reduces on a separate thread.
  virtual bool is_overlapped() const { return false; }

  // Whether ranks wait for each other before the end of a pass. A rank must then start a bucket
  // before it waits in another call, because others may wait for that bucket.
  virtual bool waits_in_pass() const { return false; }

  // Collective, between passes.
  virtual void assign(const BucketAssignment& assignment) = 0;

  // `early`: buckets may be reduced before the pass is complete. Returns whether to start each
  // bucket once its gradients have arrived; otherwise all are started at the end of the pass.
  // Errors: misuse if gradients must arrive in another way.
  virtual bool begin(bool early) = 0;

  // Takes the gradient of parameter `index`, or zeros if undefined, and makes `gradient` the tensor
  // for the result. `gradient` may share the memory of `incoming`, autograd's tensor.
  virtual Taken take(std::size_t index, at::Tensor& gradient, const at::Tensor& incoming) = 0;

  // Takes a gradient that did not arrive, or is complete only at the end of the pass. `gradient`
  // keeps its value until finish(), and afterwards unless some rank has used the parameter.
  virtual Taken take_left_out(std::size_t index, at::Tensor& gradient) = 0;

  // All gradients of `bucket`, the next one, were taken.
  virtual void start(std::size_t bucket) = 0;

  // Blocking: until all started work is done. Returns the first parameter that only the device's
  // check found to be non-finite.
  virtual std::optional<std::size_t> wait() = 0;

  // Blocking, collective, after all ranks have agreed. Multiplies results by `factor`. Replaces
  // left-out gradients of parameters that some rank used.
  virtual void finish(const PassReports& reports, double factor) = 0;

  // Drops the pass after all started work is done. Keeps no gradient.
  virtual void release() noexcept = 0;

  // An exception has ended the pass on this rank only. Returns true if no rank can reach the end of
  // the pass. The sink then forwards `reason` to the ranks that wait in its groups.
  virtual bool cut_short(std::string_view /*reason*/) const noexcept { return false; }

  // For large gradients, armed during a pass. May be null.
  virtual std::shared_ptr<GradientPool> pool() const = 0;

  // Registered memory in which gradients may lie.
  virtual std::vector<RegisteredMemory> memory() const = 0;

  // Spent on any thread.
  virtual std::chrono::nanoseconds reduce_time() const = 0;
};

}  // namespace lockstep::parallel
