// The thread that reduces buckets of gradients while the caller computes the next ones. In a CUDA
// device's memory it enqueues them on a stream of its own.
//
// Thread safety: none; the caller's thread uses it.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>

#include "lockstep/base/thread.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/gradients/reduction_stream.h"

namespace lockstep {

class BucketReduction {
 public:
  // `device`: where the gradients are.
  explicit BucketReduction(c10::Device device) : stream_(device) {}
  ~BucketReduction();
  BucketReduction(const BucketReduction&) = delete;
  BucketReduction& operator=(const BucketReduction&) = delete;

  // Blocking: runs `job` on the caller's thread and stream.
  void run(const std::function<void()>& job);

  // The caller has enqueued a gradient on its current stream: what is started later comes after it.
  void follow() { stream_.follow(); }

  // Runs `job` on the thread, after those started before. The job's data live until wait() returns.
  void start(std::function<void()> job);

  // Returns once all that was started is done. On a device the caller's current stream waits for
  // it. Errors: the first that one of them threw.
  void wait();

  // As wait(), but for the Error.
  void drain() noexcept;

  // Gives `group` up if a job is not done: its collective would keep the thread, and other ranks'.
  void abandon(const ProcessGroup& group) const noexcept;

  // Spent in run() and by the thread.
  std::chrono::nanoseconds time() const { return time_; }

 private:
  bool busy() const;
  void work();
  void join_stream() noexcept;

  std::chrono::nanoseconds time_{};  // The thread's between start() and wait().
  ReductionStream stream_;

  Thread thread_;  // Runs from the first start() on.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;  // The first one may be under way.
  std::exception_ptr error_;
  bool stop_ = false;
};

}  // namespace lockstep
