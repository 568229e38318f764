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

// Autograd then throws if a graph has saved the tensor.
void count_write(const at::Tensor& tensor) { tensor.unsafeGetTensorImpl()->bump_version(); }

}  // namespace

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
  buckets_ = allocate(assignment);
}

BucketedGradients::Buckets BucketedGradients::allocate(const BucketAssignment& assignment) const {
  Buckets buckets{.assignment = assignment,
                  .in_place = std::vector<std::vector<std::size_t>>(assignment.size()),
                  .places = std::vector<at::Tensor>(parameters_.size())};
  for (std::size_t b = 0; b < assignment.size(); ++b)
    buckets.all.push_back({.index = b, .count = assignment.size(), .group = group_});
  std::vector<at::ScalarType> done;
  for (const auto& indices : assignment) {
    const at::ScalarType dtype = type_of(parameters_, indices);
    if (std::find(done.begin(), done.end(), dtype) != done.end()) continue;
    add_region(dtype, buckets);
    done.push_back(dtype);
  }
  std::vector<std::size_t> large;
  for (const auto& indices : buckets.in_place)
    for (const std::size_t i : indices) large.push_back(parameters_[i].second.nbytes());
  if (large.empty()) return buckets;
  buckets.pool = GradientPool::make(large, group_);
  buckets.memory.push_back(buckets.pool->memory());
  return buckets;
}

bool BucketedGradients::is_copied(std::size_t index) const {
  return settings_.hook || !device_.is_cpu() ||
         !is_large_gradient(parameters_[index].second.nbytes());
}

std::size_t BucketedGradients::copied_bytes(const std::vector<std::size_t>& indices) const {
  std::size_t bytes = 0;
  for (const std::size_t i : indices)
    if (is_copied(i)) bytes += padded(parameters_[i].second.nbytes());
  return bytes;
}

void BucketedGradients::add_region(at::ScalarType dtype, Buckets& buckets) const {
  const BucketAssignment& assignment = buckets.assignment;
  std::vector<std::size_t> members;
  std::size_t bytes = 0;
  for (std::size_t b = 0; b < assignment.size(); ++b) {
    if (type_of(parameters_, assignment[b]) != dtype) continue;
    members.push_back(b);
    bytes += copied_bytes(assignment[b]);
  }
  const BucketMemory memory(bytes, dtype, device_, group_);
  if (memory.registered()) buckets.memory.push_back(*memory.registered());
  Region region{memory.flat(0, bytes), "gradients:"};
  std::size_t begin = 0;
  for (const std::size_t b : members) {
    fill_bucket(b, memory, begin, buckets);
    begin += copied_bytes(assignment[b]);
    region.label += ' ' + buckets.all[b].label;
  }
  buckets.regions.push_back(std::move(region));
}

void BucketedGradients::fill_bucket(std::size_t b, const BucketMemory& memory, std::size_t begin,
                                    Buckets& buckets) const {
  const std::vector<std::size_t>& indices = buckets.assignment[b];
  GradientBucket& bucket = buckets.all[b];
  const at::ScalarType dtype = type_of(parameters_, indices);
  bucket.buffer = memory.flat(begin, copied_bytes(indices));
  bucket.label = "bucket " + std::to_string(b) + " of " + std::to_string(bucket.count) + " (" +
                 c10::toString(dtype) + "):";
  for (const std::size_t i : indices) {
    const auto& [name, parameter] = parameters_[i];
    bucket.label += ' ' + name;
    if (!is_copied(i)) {
      buckets.in_place[b].push_back(i);
      continue;
    }
    at::Tensor& place = buckets.places[i];
    place = memory.tensor(begin, forms_[i].sizes(), forms_[i].strides());
    begin += padded(parameter.nbytes());
    bucket.gradients.emplace_back(name, place);
    bucket.parameters.push_back(parameter);
  }
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
  at::Tensor& place = buckets_.places[index];
  if (gradient.defined() && shares_incoming_memory(gradient, incoming))
    gradient = forms_[index].make().copy_(gradient);
  bool is_finite = true;
  if (is_copied(index)) {
    count_write(place);
    if (gradient.defined())
      is_finite = copy(gradient, place);
    else
      place.zero_();
    if (settings_.as_views && !is_view(index, gradient)) gradient = view(index);
  } else {
    if (!gradient.defined()) gradient = forms_[index].make().zero_();
    place = forms_[index].fits(gradient) ? gradient : forms_[index].make().copy_(gradient);
    is_finite = !settings_.check_finite || all_finite(gradient);
  }
  reduction_.follow();
  taken_.push_back(index);
  return is_finite ? Taken::fine : Taken::non_finite;
}

Taken BucketedGradients::take_left_out(std::size_t index, at::Tensor& gradient) {
  left_out_.push_back(index);
  at::Tensor& place = buckets_.places[index];
  if (!is_copied(index)) place = forms_[index].make();
  // `.grad` may be a view of the bucket, even if another reducer averages it.
  at::Tensor& live = parameters_[index].second.mutable_grad();
  if (is_view(index, live)) live = live.clone();
  if (is_copied(index)) count_write(place);
  bool is_finite = true;
  if (!gradient.defined()) {
    place.zero_();
  } else if (is_copied(index)) {
    is_finite = copy(gradient, place);
  } else {
    place.copy_(gradient);
    is_finite = !settings_.check_finite || all_finite(gradient);
  }
  return is_finite ? Taken::fine : Taken::non_finite;
}

// False for a non-finite gradient; unchecked on a device.
bool BucketedGradients::copy(const at::Tensor& gradient, const at::Tensor& place) const {
  const double scale = settings_.hook ? 1 : 1.0 / group_.size();
  if (device_.is_cpu()) return scaled_copy(place, gradient, scale);
  at::Tensor out = reals_of(place);
  at::mul_out(out, reals_of(gradient), at::scalar_tensor(scale, at::kDouble));
  return true;
}

bool BucketedGradients::is_view(std::size_t index, const at::Tensor& gradient) const {
  // On a device, gradients of a type share one storage.
  return settings_.as_views && gradient.defined() &&
         gradient.const_data_ptr() == buckets_.places[index].const_data_ptr();
}

// Shares the bucket part's version counter: autograd detects if the next pass overwrites a saved
// gradient.
at::Tensor BucketedGradients::view(std::size_t index) const {
  c10::TensorImpl& place = *buckets_.places[index].unsafeGetTensorImpl();
  return at::Tensor(place.shallow_copy_and_detach(place.version_counter(),
                                                  /*allow_tensor_metadata_change=*/true));
}

void BucketedGradients::write_mean(std::size_t index, at::Tensor& gradient) const {
  const at::Tensor& place = buckets_.places[index];
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

void BucketedGradients::finish(const PassReports& reports, double factor) {
  if (!early_) reduction_.run([this] { reduce_all(); });
  if (factor != 1) multiply(factor);
  const auto write = [this](std::size_t i) { write_mean(i, parameters_[i].second.mutable_grad()); };
  for (const std::size_t i : taken_) write(i);
  for (const std::size_t i : left_out_)
    if (reports.used_by_any(i)) write(i);
  forget_places();
}

void BucketedGradients::release() noexcept {
  reduction_.drain();
  forget_places();
}

void BucketedGradients::forget_places() {
  for (const auto& indices : buckets_.in_place)
    for (const std::size_t i : indices) buckets_.places[i].reset();
}

void BucketedGradients::start(std::size_t bucket) {
  if (!early_) return;
  reduction_.start([this, bucket] {
    enqueue_check(bucket);
    reduce(bucket);
  });
}

// The caller's stream is only now ordered after all streams that computed gradients.
std::optional<std::size_t> BucketedGradients::wait() {
  if (early_) reduction_.wait();
  for (std::size_t b = 0; !early_ && b < buckets_.all.size(); ++b) enqueue_check(b);
  return finite_check_.first_non_finite();
}

void BucketedGradients::enqueue_check(std::size_t bucket) {
  if (device_.is_cpu() || !settings_.check_finite) return;
  finite_check_.enqueue(buckets_.assignment[bucket],
                        [this](std::size_t i) { return buckets_.places[i]; });
}

void BucketedGradients::reduce_all() const {
  if (settings_.hook) {
    for (std::size_t b = 0; b < buckets_.all.size(); ++b) reduce(b);
    return;
  }
  for (const Region& region : buckets_.regions)
    if (region.flat.numel() > 0)
      all_reduce(region.flat, group_, ReduceOp::sum, {.label = region.label});
  for (const auto& indices : buckets_.in_place)
    for (const std::size_t i : indices) average_in_place(i);
}

void BucketedGradients::reduce(std::size_t b) const {
  const at::NoGradGuard no_grad;
  const GradientBucket& bucket = buckets_.all[b];
  if (settings_.hook) return call_hook(bucket);
  if (bucket.buffer.numel() > 0)
    all_reduce(bucket.buffer, group_, ReduceOp::sum, {.label = bucket.label});
  for (const std::size_t i : buckets_.in_place[b]) average_in_place(i);
}

void BucketedGradients::average_in_place(std::size_t index) const {
  // Dense and alike on all ranks: order does not matter.
  const at::Tensor& place = buckets_.places[index];
  all_reduce(place.as_strided({place.numel()}, {1}), group_, ReduceOp::average,
             {.label = parameters_[index].first});
}

void BucketedGradients::multiply(double factor) const {
  for (const Region& region : buckets_.regions) region.flat.mul_(factor);
  for (const auto& indices : buckets_.in_place)
    for (const std::size_t i : indices) buckets_.places[i].mul_(factor);
}

// Other ranks may wait in their hooks.
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
