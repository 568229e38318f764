// When and on which thread buckets of gradients are summed: all at once by the caller, or one after
// the other on a thread of its own while the caller computes the next ones. In a CUDA device's
// memory the caller enqueues them on its current stream, and the thread on one of its own.
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

#include "lockstep/base/thread.h"
#include "lockstep/parallel/gradients/communication_hook.h"
#include "lockstep/parallel/gradients/gradient_buckets.h"
#include "lockstep/parallel/gradients/reduction_stream.h"

namespace lockstep {

class BucketReduction {
 public:
  // `device`: where the gradients are.
  explicit BucketReduction(c10::Device device) : stream_(device) {}
  ~BucketReduction();
  BucketReduction(const BucketReduction&) = delete;
  BucketReduction& operator=(const BucketReduction&) = delete;

  void set_hook(CommunicationHook hook) { hook_ = std::move(hook); }
  bool has_hook() const { return static_cast<bool>(hook_); }

  // Blocking: one bucket, or all.
  void reduce(const GradientBuckets& buckets, std::size_t bucket) const;
  void run(const GradientBuckets& buckets);

  // The caller has enqueued a gradient on its current stream: what is started later comes after it.
  void follow() { stream_.follow(); }

  // Runs `job` on the thread, after those started before. What it uses lives until wait() has
  // returned.
  void start(std::function<void()> job);

  // Returns once all that was started is done; on a device once the caller's current stream waits
  // for it.
  // Errors: the first that one of them threw.
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
  void call_hook(GradientBucket bucket, const at::Tensor& place) const;
  void work();
  void join_stream() noexcept;

  CommunicationHook hook_;
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
