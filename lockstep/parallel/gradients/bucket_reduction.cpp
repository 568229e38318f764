// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/bucket_reduction.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

namespace lockstep::parallel {
namespace {

c10::Stream current_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace

void ReductionStream::follow() {
  if (device_.is_cpu()) return;
  const c10::Stream current = current_stream(device_);
  if (std::find(followed_.begin(), followed_.end(), current) == followed_.end())
    followed_.push_back(current);
}

std::function<void()> ReductionStream::after_writes(std::function<void()> job) {
  if (device_.is_cpu()) return job;
  if (!stream_)
    stream_ = c10::impl::VirtualGuardImpl(device_.type()).getStreamFromGlobalPool(device_);
  follow();
  const auto written = std::make_shared<std::vector<c10::Event>>();
  for (const c10::Stream& stream : followed_) written->emplace_back(device_.type()).record(stream);
  is_joined_ = false;
  return [written, stream = *stream_, job = std::move(job)] {
    const c10::StreamGuard guard(stream);
    for (const c10::Event& event : *written) event.block(stream);
    job();
  };
}

void ReductionStream::join() {
  followed_.clear();
  if (std::exchange(is_joined_, true)) return;
  c10::Event reduced(device_.type());
  reduced.record(*stream_);
  reduced.block(current_stream(device_));
}

BucketReduction::~BucketReduction() {
  jobs_.reset();
  join_stream();  // Pending work uses the buckets, which are destroyed next.
}

void BucketReduction::start(std::function<void()> job) {
  jobs_->start([this, job = stream_.after_writes(std::move(job))] { run(job); });
}

void BucketReduction::let_finish() { jobs_->let_finish(); }

void BucketReduction::wait() {
  const std::exception_ptr error = jobs_->take_error();
  stream_.join();
  if (error) std::rethrow_exception(error);
}

void BucketReduction::drain() noexcept {
  jobs_->take_error();
  join_stream();
}

void BucketReduction::join_stream() noexcept {
  try {
    stream_.join();
  } catch (const std::exception&) {
    // The device has failed: the next call there reports it.
  }
}

void BucketReduction::abandon(const ProcessGroup& group) const noexcept {
  if (!jobs_->busy()) return;
  try {
    group.abort("DistributedDataParallel was destroyed during backward()");
  } catch (const std::exception&) {
    // The group is already aborted.
  }
}

}  // namespace lockstep::parallel
