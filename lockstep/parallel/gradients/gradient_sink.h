// Where the gradients of a backward pass go, and how they become what `.grad` is afterwards.
//
// Reducer knows which gradients came, and tells a sink in this order:
//   begin(), then take() and take_left_out() until each gradient of a bucket was taken,
//   start() of the bucket, wait() once all are started, and finish() if all ranks agree.
// release() ends a pass at any point instead.
//
// Thread safety: none, but a sink may have a thread that works on the buckets that were started.

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

// How a gradient was found when it was taken.
enum class Taken : std::uint8_t {
  fine,        // Finite, or not looked at.
  non_finite,  // An element is infinite or NaN.
  old_mean,  // The mean of an earlier pass, which this rank alone has: nothing can be added to it.
};

class GradientSink {
 public:
  virtual ~GradientSink() = default;

  // Buckets that the sink has chosen, of which only the order changes. Otherwise they are
  // PyTorch's.
  virtual std::optional<BucketAssignment> own_buckets() const { return {}; }

  // Whether the gradient of parameter `index` is sparse. Others are dense.
  virtual bool is_sparse(std::size_t /*index*/) const { return false; }

  // Whether it always reduces during backward(), on a thread of its own.
  virtual bool is_overlapped() const { return false; }

  // Whether ranks wait for each other before the end of a pass, in start() or for weights. Ranks
  // that have not started the same bucket by then must not wait in another call before they do.
  virtual bool waits_in_pass() const { return false; }

  // Collective, between passes: gradients are taken by these buckets from now on.
  virtual void assign(const BucketAssignment& assignment) = 0;

  // A pass begins; an earlier one that was cut short is released. `early`: buckets may be reduced
  // before the pass is complete. Returns whether they should be: each is then started as soon as
  // all its gradients came, otherwise all are started at the end of the pass. Errors: misuse where
  // gradients come in another way.
  virtual bool begin(bool early) = 0;

  // Takes the gradient of parameter `index`, or zeros if it is undefined, and makes `gradient` the
  // tensor that will be the result. `incoming` is autograd's, in whose memory it may lie.
  virtual Taken take(std::size_t index, at::Tensor& gradient, const at::Tensor& incoming) = 0;

  // Takes a gradient that did not come, or that is known to be complete only at the end of the
  // pass. `gradient` keeps its value until finish(), unless no rank has used the parameter.
  virtual Taken take_left_out(std::size_t index, at::Tensor& gradient) = 0;

  // All gradients of the next bucket were taken.
  virtual void start(std::size_t bucket) = 0;

  // Blocking: until all that was started is done, and the device has looked at the gradients.
  // Returns the first parameter that only the device found to be non-finite.
  virtual std::optional<std::size_t> wait() = 0;

  // Blocking, collective: all ranks have agreed on the pass. Results are multiplied by `factor`,
  // and those of parameters that some rank used replace gradients that were left out.
  virtual void finish(const PassReports& reports, double factor) = 0;

  // Drops the pass, once all that was started is done. The sink keeps no gradient.
  virtual void release() noexcept = 0;

  // An exception has ended the pass on this rank alone. Returns true if no rank can come to the end
  // of the pass any more: `reason` then goes to those that wait for this one in the sink's groups.
  virtual bool cut_short(std::string_view /*reason*/) const noexcept { return false; }

  // Memory for large gradients, which is armed during a pass. Null where there is none.
  virtual std::shared_ptr<GradientPool> pool() const = 0;

  // Registered memory in which gradients may lie.
  virtual std::vector<RegisteredMemory> memory() const = 0;

  // Time spent in reductions, on any thread.
  virtual std::chrono::nanoseconds reduce_time() const = 0;
};

}  // namespace lockstep::parallel
