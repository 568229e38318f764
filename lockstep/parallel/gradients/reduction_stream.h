// The stream of a CUDA device on which gradients are reduced beside backward(): who waits for whom.
//
// What a job enqueues comes after what wrote the gradients, and join() makes the caller's stream
// wait for it. Only the device waits, never a thread. In CPU memory there are no streams: a job is
// what it was, and nothing else is done.
//
// Thread safety: none, but that jobs may run on another thread, one at a time.

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

  // This thread's current stream writes gradients: the jobs that are made from now on until join()
  // wait for what was enqueued on it when they were made. A model may use several streams.
  void follow();

  // `job`, to be called with the stream as the current one, after what the followed streams have by
  // now.
  std::function<void()> after_writes(std::function<void()> job);

  // This thread's current stream waits for what the jobs that were called have enqueued.
  void join();

 private:
  const c10::Device device_;
  std::optional<c10::Stream> stream_;  // Of LibTorch's pool, from the first job on.
  std::vector<c10::Stream> followed_;
  bool is_joined_ = true;
};

}  // namespace lockstep
