// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradient_buckets.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <utility>

#include "lockstep/comm/error.h"
#include "lockstep/tensor/collectives.h"

namespace lockstep {
namespace {

constexpr std::size_t cache_line = 64;

std::size_t padded(std::size_t bytes) { return (bytes + cache_line - 1) / cache_line * cache_line; }

std::size_t padded_bytes(const NamedTensors& parameters, const std::vector<std::size_t>& indices) {
  std::size_t bytes = 0;
  for (const std::size_t i : indices) bytes += padded(parameters[i].second.nbytes());
  return bytes;
}

at::ScalarType type_of(const NamedTensors& parameters, const std::vector<std::size_t>& indices) {
  return parameters[indices.front()].second.scalar_type();
}

std::vector<std::int64_t> contiguous_strides(at::IntArrayRef sizes) {
  std::vector<std::int64_t> strides(sizes.size(), 1);
  for (std::size_t dim = sizes.size(); dim > 1; --dim)
    strides[dim - 2] = strides[dim - 1] * sizes[dim - 1];
  return strides;
}

std::vector<std::int64_t> gradient_strides(const at::Tensor& parameter) {
  return parameter.is_non_overlapping_and_dense() ? parameter.strides().vec()
                                                  : contiguous_strides(parameter.sizes());
}

at::Tensor flat_view(const RegisteredMemory& memory, std::size_t begin, std::size_t bytes,
                     at::ScalarType dtype) {
  const auto elements = static_cast<std::int64_t>(bytes / c10::elementSize(dtype));
  return view_of(memory, begin, {elements}, {1}, dtype);
}

}  // namespace

void require_reducible_gradient(const std::string& name, const at::Tensor& parameter) {
  if (!parameter.is_cpu())
    throw Error(Fault::unsupported, "parameter " + name + " is not in CPU memory");
  try {
    reducible_dtype(parameter.scalar_type());
  } catch (const Error& error) {
    throw Error(error.fault(), "the gradient of parameter " + name + ": " + error.what());
  }
}

GradientBuckets::GradientBuckets(const NamedTensors& parameters, const BucketAssignment& assignment,
                                 const ProcessGroup& group)
    : views_(parameters.size()), bucket_of_(parameters.size()) {
  for (std::size_t b = 0; b < assignment.size(); ++b)
    buckets_.push_back({.index = b, .count = assignment.size(), .group = group});
  std::vector<at::ScalarType> done;
  for (const auto& indices : assignment) {
    const at::ScalarType dtype = type_of(parameters, indices);
    if (std::find(done.begin(), done.end(), dtype) != done.end()) continue;
    fill_region(dtype, parameters, assignment, group);
    done.push_back(dtype);
  }
}

void GradientBuckets::fill_region(at::ScalarType dtype, const NamedTensors& parameters,
                                  const BucketAssignment& assignment, const ProcessGroup& group) {
  std::vector<std::size_t> members;
  std::size_t bytes = 0;
  for (std::size_t b = 0; b < assignment.size(); ++b) {
    if (type_of(parameters, assignment[b]) != dtype) continue;
    members.push_back(b);
    bytes += padded_bytes(parameters, assignment[b]);
  }
  const RegisteredMemory memory = group.allocate(bytes);
  Region region{flat_view(memory, 0, bytes, dtype), "gradients:"};
  std::size_t begin = 0;
  for (const std::size_t b : members) {
    fill_bucket(b, memory, begin, parameters, assignment[b]);
    begin += padded_bytes(parameters, assignment[b]);
    region.tag += ' ' + buckets_[b].tag;
  }
  regions_.push_back(std::move(region));
}

void GradientBuckets::fill_bucket(std::size_t b, const RegisteredMemory& memory, std::size_t begin,
                                  const NamedTensors& parameters,
                                  const std::vector<std::size_t>& indices) {
  GradientBucket& bucket = buckets_[b];
  const at::ScalarType dtype = type_of(parameters, indices);
  bucket.buffer = flat_view(memory, begin, padded_bytes(parameters, indices), dtype);
  bucket.tag = "bucket " + std::to_string(b) + " of " + std::to_string(bucket.count) + " (" +
               c10::toString(dtype) + "):";
  for (const std::size_t i : indices) {
    const auto& [name, parameter] = parameters[i];
    views_[i] = view_of(memory, begin, parameter.sizes(), gradient_strides(parameter), dtype);
    bucket_of_[i] = b;
    bucket.gradients.emplace_back(name, views_[i]);
    bucket.parameters.push_back(parameter);
    bucket.tag += ' ' + name;
    begin += padded(parameter.nbytes());
  }
}

void GradientBuckets::all_reduce(const ProcessGroup& group) const {
  for (const Region& region : regions_)
    lockstep::all_reduce(region.flat, group, ReduceOp::sum, {.tag = region.tag});
}

void GradientBuckets::multiply(double factor) const {
  const at::NoGradGuard no_grad;
  for (const Region& region : regions_) region.flat.mul_(factor);
}

void GradientBuckets::zero() const {
  for (const Region& region : regions_) region.flat.zero_();
}

}  // namespace lockstep
