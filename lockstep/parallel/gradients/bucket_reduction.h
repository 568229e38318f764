// A thread that reduces buckets of gradients during backward(), on CUDA in a stream of its own.
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <chrono>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/gradients/ordered_jobs.h"
#include "lockstep/parallel/gradients/stopwatch.h"

namespace lockstep::parallel {

// The CUDA stream on which gradients are reduced. Only the device waits, never a thread. In CPU
// memory, jobs are returned unchanged, and the other members do nothing. Jobs may run on another
// thread, one at a time.
class ReductionStream {
 public:
  explicit ReductionStream(c10::Device device) : device_(device) {}

  // Follows this thread's current stream, which writes gradients, until the next join(). A model
  // may use several such streams.
  void follow();

  // As follow(). Returns a job for the reduction stream, after all work now in followed streams.
  std::function<void()> after_writes(std::function<void()> job);

  // The current stream waits for all work of the jobs.
  void join();

 private:
  const c10::Device device_;
  std::optional<c10::Stream> stream_;  // From LibTorch's pool; set by the first job.
  std::vector<c10::Stream> followed_;
  bool is_joined_ = true;
};

class BucketReduction {
 public:
  explicit BucketReduction(c10::Device device) : stream_(device) {}
  ~BucketReduction();
  BucketReduction(const BucketReduction&) = delete;
  BucketReduction& operator=(const BucketReduction&) = delete;

  // Blocking: on the caller's thread and stream.
  template <class Job>
  void run(const Job& job) {
    const Stopwatch watch(time_);
    job();
  }

  // A gradient was enqueued on the current stream: later jobs follow.
  void follow() { stream_.follow(); }

  // Runs `job` after earlier ones, or drops it if one has failed. The job's data must live until
  // wait() returns.
  void start(std::function<void()> job);

  // Blocking: until all jobs are done. Leaves an Error to wait().
  void let_finish();

  // Blocking: until all jobs are done. On a device, the current stream waits for their work.
  // Errors: those of the first job that failed.
  void wait();

  // As wait(), but drops the Error.
  void drain() noexcept;

  // Aborts `group` if a job is not done: its collective would block.
  void abandon(const ProcessGroup& group) const noexcept;

  std::chrono::nanoseconds time() const { return time_; }

 private:
  void join_stream() noexcept;

  std::chrono::nanoseconds time_{};  // Written by the thread between start() and wait().
  ReductionStream stream_;
  std::optional<OrderedJobs> jobs_{std::in_place};  // Last: its thread uses the other members.
};

}  // namespace lockstep::parallel
