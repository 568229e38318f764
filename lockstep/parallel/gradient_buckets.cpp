// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradient_buckets.h"

#include <c10/core/ScalarType.h>

#include <map>

#include "lockstep/comm/error.h"
#include "lockstep/tensor/collectives.h"

namespace lockstep {
namespace {

constexpr std::size_t cache_line = 64;

std::size_t padded(std::size_t bytes) { return (bytes + cache_line - 1) / cache_line * cache_line; }

void require_reducible(const std::string& name, const at::Tensor& parameter) {
  require(parameter.is_cpu(), "parameter " + name + " is not in CPU memory");
  try {
    reducible_dtype(parameter.scalar_type());
  } catch (const Error& error) {
    throw Error(error.fault(), "the gradient of parameter " + name + ": " + error.what());
  }
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

}  // namespace

GradientBuckets::GradientBuckets(const NamedTensors& parameters, const ProcessGroup& group)
    : views_(parameters.size()) {
  std::map<at::ScalarType, std::vector<std::size_t>> indices_by_type;
  // Last parameter first: the order in which backward() tends to produce gradients.
  for (std::size_t i = parameters.size(); i-- > 0;) {
    require_reducible(parameters[i].first, parameters[i].second);
    indices_by_type[parameters[i].second.scalar_type()].push_back(i);
  }
  for (const auto& [dtype, indices] : indices_by_type) {
    std::size_t bytes = 0;
    for (const std::size_t i : indices) bytes += padded(parameters[i].second.nbytes());
    const RegisteredMemory memory = group.allocate(bytes);
    std::size_t offset = 0;
    for (const std::size_t i : indices) {
      const at::Tensor& parameter = parameters[i].second;
      views_[i] = view_of(memory, offset, parameter.sizes(), gradient_strides(parameter), dtype);
      offset += padded(parameter.nbytes());
    }
    const auto elements = static_cast<std::int64_t>(bytes / c10::elementSize(dtype));
    buckets_.push_back({view_of(memory, 0, {elements}, {1}, dtype),
                        std::string("gradients of type ") + c10::toString(dtype)});
  }
}

void GradientBuckets::all_reduce(const ProcessGroup& group) const {
  for (const Bucket& bucket : buckets_)
    lockstep::all_reduce(bucket.flat, group, ReduceOp::sum, {.tag = bucket.tag});
}

}  // namespace lockstep
