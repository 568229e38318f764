// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/bucket_reduction.h"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "lockstep/base/block_signals.h"
#include "lockstep/base/error.h"
#include "lockstep/base/exception_text.h"
#include "lockstep/parallel/gradients/stopwatch.h"

namespace lockstep {

BucketReduction::~BucketReduction() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
  join_stream();  // Buckets go next, and what is under way there still uses them.
}

void BucketReduction::run(const GradientBuckets& buckets) {
  const Stopwatch watch(time_);
  if (!hook_) return buckets.average_all();
  for (std::size_t b = 0; b < buckets.buckets().size(); ++b) reduce(buckets, b);
}

void BucketReduction::start(std::function<void()> job) {
  job = stream_.after_writes(std::move(job));
  if (!thread_.joinable()) thread_ = start_thread([this] { work(); });
  {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(job));
  }
  changed_.notify_all();
}

void BucketReduction::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return queue_.empty(); });
  stream_.join();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

void BucketReduction::drain() noexcept {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return queue_.empty(); });
  error_ = nullptr;
  join_stream();
}

void BucketReduction::join_stream() noexcept {
  try {
    stream_.join();
  } catch (const std::exception&) {
    // The device has failed, as the next thing that is enqueued there will say.
  }
}

void BucketReduction::reduce(const GradientBuckets& buckets, std::size_t index) const {
  const at::NoGradGuard no_grad;
  if (!hook_) return buckets.average(index);
  const at::Tensor& place = buckets.buckets()[index].buffer;
  call_hook(buckets.buckets()[index], place);
}

// The others may wait for this rank in the midst of their hooks.
void BucketReduction::call_hook(GradientBucket bucket, const at::Tensor& place) const {
  const ProcessGroup group = bucket.group;  // A hook may exchange the bucket's parts.
  try {
    hook_(bucket);
    require(bucket.buffer.defined() && bucket.buffer.sizes() == place.sizes(),
            "a communication hook has exchanged the bucket's buffer for one of another shape");
    if (!bucket.buffer.is_same(place)) place.copy_(bucket.buffer);
  } catch (...) {
    group.abort("a communication hook ended with " + exception_text(std::current_exception()));
    throw;
  }
}

void BucketReduction::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || !queue_.empty(); });
    if (stop_) return;
    const auto job = queue_.front();
    const bool go_on = !error_;  // After an Error the group is not what it was.
    lock.unlock();
    std::exception_ptr error;
    try {
      const Stopwatch watch(time_);
      if (go_on) job();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error) error_ = error;
    queue_.pop_front();
    changed_.notify_all();
  }
}

}  // namespace lockstep
