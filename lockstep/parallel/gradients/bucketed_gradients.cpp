// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/bucketed_gradients.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/memory.h"
#include "lockstep/base/text.h"
#include "lockstep/tensor/collectives.h"
#include "lockstep/tensor/tensor_memory.h"

namespace lockstep::parallel {
namespace {

at::ScalarType type_of(const NamedTensors& parameters, const std::vector<std::size_t>& indices) {
  return parameters[indices.front()].second.scalar_type();
}

// Like an operator that writes in place: autograd throws if a graph has saved the tensor.
void count_write(const at::Tensor& tensor) { tensor.unsafeGetTensorImpl()->bump_version(); }

Taken taken(bool finite) { return finite ? Taken::fine : Taken::non_finite; }

}  // namespace

// --- GradientBuckets: memory --------------------------------------------------------------------

GradientBuckets::GradientBuckets(const NamedTensors& parameters, std::vector<GradientForm> forms,
                                 const BucketAssignment& assignment, const ProcessGroup& group,
                                 Settings settings)
    : parameters_(parameters),
      group_(group),
      device_(parameters.front().second.device()),
      settings_(settings),
      scale_(settings.for_hook ? 1 : 1.0 / group.size()),
      forms_(std::move(forms)),
      in_place_(assignment.size()),
      places_(parameters.size()) {
  for (std::size_t b = 0; b < assignment.size(); ++b)
    buckets_.push_back({.index = b, .count = assignment.size(), .group = group});
  std::vector<at::ScalarType> done;
  for (const auto& indices : assignment) {
    const at::ScalarType dtype = type_of(parameters, indices);
    if (std::find(done.begin(), done.end(), dtype) != done.end()) continue;
    fill_region(dtype, assignment);
    done.push_back(dtype);
  }
  std::vector<std::size_t> large;
  for (const auto& indices : in_place_)
    for (const std::size_t i : indices) large.push_back(parameters[i].second.nbytes());
  if (large.empty()) return;
  pool_ = GradientPool::make(large, group);
  memory_.push_back(pool_->memory());
}

bool GradientBuckets::is_copied(std::size_t index) const {
  return settings_.for_hook || !device_.is_cpu() ||
         !is_large_gradient(parameters_[index].second.nbytes());
}

std::size_t GradientBuckets::copied_bytes(const std::vector<std::size_t>& indices) const {
  std::size_t bytes = 0;
  for (const std::size_t i : indices)
    if (is_copied(i)) bytes += padded(parameters_[i].second.nbytes());
  return bytes;
}

void GradientBuckets::fill_region(at::ScalarType dtype, const BucketAssignment& assignment) {
  std::vector<std::size_t> members;
  std::size_t bytes = 0;
  for (std::size_t b = 0; b < assignment.size(); ++b) {
    if (type_of(parameters_, assignment[b]) != dtype) continue;
    members.push_back(b);
    bytes += copied_bytes(assignment[b]);
  }
  const BucketMemory memory(bytes, dtype, device_, group_);
  if (memory.registered()) memory_.push_back(*memory.registered());
  Region region{memory.flat(0, bytes), "gradients:"};
  std::size_t begin = 0;
  for (const std::size_t b : members) {
    fill_bucket(b, memory, begin, assignment[b]);
    begin += copied_bytes(assignment[b]);
    region.label += ' ' + buckets_[b].label;
  }
  regions_.push_back(std::move(region));
}

void GradientBuckets::fill_bucket(std::size_t b, const BucketMemory& memory, std::size_t begin,
                                  const std::vector<std::size_t>& indices) {
  GradientBucket& bucket = buckets_[b];
  const at::ScalarType dtype = type_of(parameters_, indices);
  bucket.buffer = memory.flat(begin, copied_bytes(indices));
  bucket.label = "bucket " + std::to_string(b) + " of " + std::to_string(bucket.count) + " (" +
                 c10::toString(dtype) + "):";
  for (const std::size_t i : indices) {
    const auto& [name, parameter] = parameters_[i];
    bucket.label += ' ' + name;
    if (!is_copied(i)) {
      in_place_[b].push_back(i);
      continue;
    }
    places_[i] = memory.tensor(begin, forms_[i].sizes(), forms_[i].strides());
    begin += padded(parameter.nbytes());
    bucket.gradients.emplace_back(name, places_[i]);
    bucket.parameters.push_back(parameter);
  }
}

// --- GradientBuckets: taking --------------------------------------------------------------------

bool GradientBuckets::copy(const at::Tensor& gradient, const at::Tensor& place) const {
  if (device_.is_cpu()) return scaled_copy(place, gradient, scale_);
  at::Tensor out = reals_of(place);
  at::mul_out(out, reals_of(gradient), at::scalar_tensor(scale_, at::kDouble));
  return true;
}

bool GradientBuckets::take(std::size_t index, at::Tensor& gradient, const at::Tensor& incoming,
                           bool check_finite) {
  at::Tensor& place = places_[index];
  if (gradient.defined() && shares_incoming_memory(gradient, incoming))
    gradient = forms_[index].make().copy_(gradient);
  if (is_copied(index)) {
    count_write(place);
    const bool finite = !gradient.defined() || copy(gradient, place);
    if (!gradient.defined()) place.zero_();
    if (settings_.as_views && !is_view(index, gradient)) gradient = view(index);
    return finite;
  }
  if (!gradient.defined()) gradient = forms_[index].make().zero_();
  place = forms_[index].fits(gradient) ? gradient : forms_[index].make().copy_(gradient);
  return !check_finite || all_finite(gradient);
}

bool GradientBuckets::take_left_out(std::size_t index, at::Tensor& gradient, bool check_finite) {
  at::Tensor& place = places_[index];
  if (!is_copied(index)) place = forms_[index].make();
  // `.grad` may be a view of the bucket since an earlier pass, even if another reducer averages it.
  at::Tensor& live = parameters_[index].second.mutable_grad();
  if (is_view(index, live)) live = live.clone();
  if (is_copied(index)) count_write(place);
  if (!gradient.defined()) {
    place.zero_();
    return true;
  }
  if (is_copied(index)) return copy(gradient, place);
  place.copy_(gradient);
  return !check_finite || all_finite(gradient);
}

bool GradientBuckets::is_view(std::size_t index, const at::Tensor& gradient) const {
  // Gradients of a type share one storage on a device: only the address distinguishes them.
  return settings_.as_views && gradient.defined() &&
         gradient.const_data_ptr() == places_[index].const_data_ptr();
}

// Shares the version counter of the bucket's part. Autograd therefore detects if the next pass
// overwrites a gradient that a graph has saved.
at::Tensor GradientBuckets::view(std::size_t index) const {
  c10::TensorImpl& place = *places_[index].unsafeGetTensorImpl();
  return at::Tensor(place.shallow_copy_and_detach(place.version_counter(),
                                                  /*allow_tensor_metadata_change=*/true));
}

void GradientBuckets::write_mean(std::size_t index, at::Tensor& gradient) const {
  const at::Tensor& place = places_[index];
  if (settings_.as_views && is_copied(index)) {
    if (!is_view(index, gradient)) gradient = view(index);
  } else if (!gradient.defined()) {
    gradient = is_copied(index) ? place.clone() : place;
  } else if (gradient.is_same(place)) {
    count_write(gradient);
  } else {
    gradient.copy_(place);
  }
}

void GradientBuckets::release() {
  for (const auto& indices : in_place_)
    for (const std::size_t i : indices) places_[i].reset();
}

// --- GradientBuckets: averaging -----------------------------------------------------------------

void GradientBuckets::average(std::size_t b) const {
  const GradientBucket& bucket = buckets_[b];
  if (bucket.buffer.numel() > 0)
    all_reduce(bucket.buffer, group_, ReduceOp::sum, {.label = bucket.label});
  for (const std::size_t i : in_place_[b]) average_in_place(i);
}

void GradientBuckets::average_all() const {
  for (const Region& region : regions_)
    if (region.flat.numel() > 0)
      all_reduce(region.flat, group_, ReduceOp::sum, {.label = region.label});
  for (const auto& indices : in_place_)
    for (const std::size_t i : indices) average_in_place(i);
}

void GradientBuckets::average_in_place(std::size_t index) const {
  // Dense, with the same layout on all ranks: the order of its elements does not matter.
  const at::Tensor flat = places_[index].as_strided({places_[index].numel()}, {1});
  all_reduce(flat, group_, ReduceOp::average, {.label = parameters_[index].first});
}

void GradientBuckets::multiply(double factor) const {
  for (const Region& region : regions_) region.flat.mul_(factor);
  for (const auto& indices : in_place_)
    for (const std::size_t i : indices) places_[i].mul_(factor);
}

// --- BucketedGradients --------------------------------------------------------------------------

BucketedGradients::BucketedGradients(const NamedTensors& parameters, const ProcessGroup& group,
                                     Settings settings)
    : parameters_(parameters),
      group_(group),
      settings_(std::move(settings)),
      device_(parameters.front().second.device()),
      forms_(gradient_forms(parameters)),
      reduction_(device_) {}

BucketedGradients::~BucketedGradients() { reduction_.abandon(group_); }

void BucketedGradients::assign(const BucketAssignment& assignment) {
  reduction_.drain();
  auto made = std::make_unique<GradientBuckets>(
      parameters_, forms_, assignment, group_,
      GradientBuckets::Settings{.for_hook = static_cast<bool>(settings_.hook),
                                .as_views = settings_.as_views});
  assignment_ = assignment;
  buckets_ = std::move(made);
}

bool BucketedGradients::begin(bool early) {
  release();
  finite_check_.clear();
  taken_.clear();
  left_out_.clear();
  early_ = early && settings_.overlapped;
  return early_;
}

Taken BucketedGradients::take(std::size_t index, at::Tensor& gradient, const at::Tensor& incoming) {
  const bool finite = buckets_->take(index, gradient, incoming, settings_.check_finite);
  reduction_.follow();
  taken_.push_back(index);
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

// The caller's stream is only now ordered after all streams that computed gradients.
std::optional<std::size_t> BucketedGradients::wait() {
  if (early_) reduction_.wait();
  for (std::size_t b = 0; !early_ && b < assignment_.size(); ++b) enqueue_check(b);
  return finite_check_.first_non_finite();
}

void BucketedGradients::finish(const PassReports& reports, double factor) {
  if (!early_) reduction_.run([this] { reduce_all(); });
  if (factor != 1) buckets_->multiply(factor);
  const auto write_mean = [this](std::size_t i) {
    buckets_->write_mean(i, parameters_[i].second.mutable_grad());
  };
  for (const std::size_t i : taken_) write_mean(i);
  for (const std::size_t i : left_out_)
    if (reports.used_by_any(i)) write_mean(i);
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

// The other ranks may wait for this rank in their hooks.
void BucketedGradients::call_hook(GradientBucket bucket) const {
  const at::Tensor place = bucket.buffer;
  const ProcessGroup group = bucket.group;  // A hook may replace the bucket's members.
  try {
    settings_.hook(bucket);
    require(bucket.buffer.defined() && bucket.buffer.sizes() == place.sizes(),
            "a communication hook has replaced the bucket's buffer by one of another shape");
    if (!bucket.buffer.is_same(place)) place.copy_(bucket.buffer);
  } catch (...) {
    group.abort("a communication hook ended with " + exception_text(std::current_exception()));
    throw;
  }
}

}  // namespace lockstep::parallel
