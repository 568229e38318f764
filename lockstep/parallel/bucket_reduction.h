// When and on which thread buckets of gradients are summed: all at once by the caller, or one after
// the other on a thread of its own while the caller computes the next ones.
//
// Thread safety: none; the caller's thread uses it.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/communication_hook.h"
#include "lockstep/parallel/gradient_buckets.h"

namespace lockstep {

class BucketReduction {
 public:
  BucketReduction() = default;
  ~BucketReduction();
  BucketReduction(const BucketReduction&) = delete;
  BucketReduction& operator=(const BucketReduction&) = delete;

  void set_hook(CommunicationHook hook) { hook_ = std::move(hook); }
  bool has_hook() const { return static_cast<bool>(hook_); }

  // Blocking: all buckets.
  void run(const GradientBuckets& buckets, const ProcessGroup& group);

  // One bucket, on the thread, after those started before. It must live until wait() has returned.
  void start(const GradientBucket& bucket);

  // Returns once all that was started is done. Errors: the first that one of them threw.
  void wait();

  // Whether start()ed buckets are not done.
  bool busy() const {
    const std::lock_guard lock(mutex_);
    return !queue_.empty();
  }

  // Spent in run() and by the thread.
  std::chrono::nanoseconds time() const { return time_; }

 private:
  void reduce(const GradientBucket& bucket);
  void work();

  CommunicationHook hook_;
  std::chrono::nanoseconds time_{};  // The thread's between start() and wait().

  std::thread thread_;  // Runs from the first start() on.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<const GradientBucket*> queue_;  // The first one may be under way.
  std::exception_ptr error_;
  bool stop_ = false;
};

}  // namespace lockstep
