// When and on which thread buckets of gradients are summed: all at once by the caller, or one after
// the other on a thread of its own while the caller computes the next ones.
//
// Thread safety: none; the caller's thread uses it.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

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
  void run(const GradientBuckets& buckets);

  // One bucket, on the thread, after those started before. All must live until wait() has returned.
  void start(const GradientBuckets& buckets, std::size_t bucket);

  // Anything else in its place.
  void start(std::function<void()> job);

  // Returns once all that was started is done. Errors: the first that one of them threw.
  void wait();

  // As wait(), but for the Error.
  void drain() noexcept;

  // Whether start()ed buckets are not done.
  bool busy() const {
    const std::lock_guard lock(mutex_);
    return !queue_.empty();
  }

  // Spent in run() and by the thread.
  std::chrono::nanoseconds time() const { return time_; }

 private:
  void reduce(const GradientBuckets& buckets, std::size_t bucket);
  void work();

  CommunicationHook hook_;
  std::chrono::nanoseconds time_{};  // The thread's between start() and wait().

  std::thread thread_;  // Runs from the first start() on.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;  // The first one may be under way.
  std::exception_ptr error_;
  bool stop_ = false;
};

}  // namespace lockstep
