// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/bucketed_gradients.h"

#include <ATen/core/grad_mode.h>

#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep {
namespace {

Taken taken(bool finite) { return finite ? Taken::fine : Taken::non_finite; }

}  // namespace

BucketedGradients::BucketedGradients(const NamedTensors& parameters, const ProcessGroup& group,
                                     Settings settings)
    : parameters_(parameters),
      group_(group),
      settings_(std::move(settings)),
      device_(parameters.front().second.device()),
      reduction_(device_) {}

BucketedGradients::~BucketedGradients() { reduction_.abandon(group_); }

void BucketedGradients::assign(const BucketAssignment& assignment) {
  reduction_.drain();
  const bool for_hook = static_cast<bool>(settings_.hook);
  auto made = std::make_unique<GradientBuckets>(parameters_, assignment, group_, for_hook);
  assignment_ = assignment;
  buckets_ = std::move(made);
}

bool BucketedGradients::begin(bool early) {
  release();
  finite_check_.clear();
  left_out_.clear();
  early_ = early && settings_.overlapped;
  return early_;
}

Taken BucketedGradients::take(std::size_t index, at::Tensor& gradient, const at::Tensor& incoming) {
  const bool finite = buckets_->take(index, gradient, incoming, settings_.check_finite);
  reduction_.follow();
  return taken(finite);
}

Taken BucketedGradients::take_left_out(std::size_t index, at::Tensor& gradient) {
  left_out_.push_back(index);
  return taken(buckets_->take_left_out(index, gradient, settings_.check_finite));
}

void BucketedGradients::start(std::size_t bucket) {
  if (!early_) return;
  reduction_.start([this, bucket] {
    enqueue_check(bucket);
    reduce(bucket);
  });
}

void BucketedGradients::enqueue_check(std::size_t bucket) {
  if (device_.is_cpu() || !settings_.check_finite) return;
  finite_check_.enqueue(assignment_[bucket], [this](std::size_t i) { return buckets_->taken(i); });
}

// Gradients may have come on several streams, which the caller's follows only by now.
std::optional<std::size_t> BucketedGradients::wait() {
  if (early_) reduction_.wait();
  for (std::size_t b = 0; !early_ && b < assignment_.size(); ++b) enqueue_check(b);
  return finite_check_.first_non_finite();
}

void BucketedGradients::finish(const PassReports& reports, double factor) {
  if (!early_) reduction_.run([this] { reduce_all(); });
  if (factor != 1) buckets_->multiply(factor);
  for (const std::size_t i : left_out_)
    if (reports.used_by_any(i)) buckets_->adopt(i, parameters_[i].second.mutable_grad());
  buckets_->release();
}

void BucketedGradients::release() noexcept {
  reduction_.drain();
  buckets_->release();
}

void BucketedGradients::reduce_all() const {
  if (!settings_.hook) return buckets_->average_all();
  for (std::size_t b = 0; b < assignment_.size(); ++b) reduce(b);
}

void BucketedGradients::reduce(std::size_t bucket) const {
  const at::NoGradGuard no_grad;
  settings_.hook ? call_hook(buckets_->buckets()[bucket]) : buckets_->average(bucket);
}

// The others may wait for this rank in the midst of their hooks.
void BucketedGradients::call_hook(GradientBucket bucket) const {
  const at::Tensor place = bucket.buffer;
  const ProcessGroup group = bucket.group;  // A hook may exchange the bucket's parts.
  try {
    settings_.hook(bucket);
    require(bucket.buffer.defined() && bucket.buffer.sizes() == place.sizes(),
            "a communication hook has exchanged the bucket's buffer for one of another shape");
    if (!bucket.buffer.is_same(place)) place.copy_(bucket.buffer);
  } catch (...) {
    group.abort("a communication hook ended with " + exception_text(std::current_exception()));
    throw;
  }
}

}  // namespace lockstep
