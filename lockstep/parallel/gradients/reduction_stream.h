// The CUDA stream on which gradients are reduced in parallel to backward(), with its dependencies.
//
// A job's work is ordered after the writes of the gradients. join() makes the caller's stream wait
// for it. Only the device waits, never a thread. In CPU memory there are no streams: jobs are
// returned unchanged, and the other members do nothing.
//
// Thread safety: none, except that jobs may run on another thread, one at a time.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <functional>
#include <optional>
#include <vector>

namespace lockstep {

class ReductionStream {
 public:
  explicit ReductionStream(c10::Device device) : device_(device) {}

  // Marks this thread's current stream as one that writes gradients. A job made from now until
  // join() waits for all work enqueued there when the job is made. A model may use several streams.
  void follow();

  // Returns `job` wrapped so that it runs with the reduction stream as the current one, ordered
  // after all work now enqueued on the followed streams.
  std::function<void()> after_writes(std::function<void()> job);

  // Makes this thread's current stream wait for all work that called jobs have enqueued.
  void join();

 private:
  const c10::Device device_;
  std::optional<c10::Stream> stream_;  // From LibTorch's pool; set by the first job.
  std::vector<c10::Stream> followed_;
  bool is_joined_ = true;
};

}  // namespace lockstep
