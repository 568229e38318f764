// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/bucket_order.h"

#include <algorithm>
#include <utility>

namespace lockstep {
namespace {

// PyTorch's rule, and nobody needs buckets where SharedOptimizer averages.
bool learns_from(const DistributedDataParallelOptions& options) {
  return !options.share_parameters && (!options.find_unused_parameters || options.static_graph);
}

BucketLimits limits_of(const DistributedDataParallelOptions& options) {
  const bool whole_at_first = options.static_graph || !options.find_unused_parameters;
  return bucket_limits(options.bucket_cap_mb, options.bucket_caps_mb, whole_at_first);
}

}  // namespace

BucketOrder::BucketOrder(const NamedTensors& parameters,
                         const DistributedDataParallelOptions& options)
    : limits_(limits_of(options)), bucket_of_(parameters.size()), learns_(learns_from(options)) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, parameter] : parameters) tensors.push_back(parameter);
  auto assignment = compute_bucket_assignment_by_size(tensors, limits_.first);
  std::reverse(assignment.begin(), assignment.end());
  assign(std::move(assignment));
}

void BucketOrder::begin_pass() {
  if (learns_) arrival_.clear();
}

void BucketOrder::note(std::size_t index) {
  if (learns_) arrival_.push_back(index);
}

BucketAssignment BucketOrder::learned(const NamedTensors& parameters, const ProcessGroup& group) {
  due_ = false;
  learns_ = false;
  std::vector<std::size_t> order = std::exchange(arrival_, {});
  for (std::size_t i = 0; i < parameters.size(); ++i)  // Those that a static graph leaves out.
    if (std::find(order.begin(), order.end(), i) == order.end()) order.push_back(i);
  group.broadcast({.data = order.data(), .count = order.size(), .dtype = DType::int64}, 0,
                  {.label = "order of gradients"});
  std::vector<at::Tensor> in_order;
  for (const std::size_t i : order) in_order.push_back(parameters[i].second);
  return compute_bucket_assignment_by_size(in_order, limits_.rebuilt, order);
}

void BucketOrder::assign(BucketAssignment assignment) {
  assignment_ = std::move(assignment);
  for (std::size_t b = 0; b < assignment_.size(); ++b)
    for (const std::size_t i : assignment_[b]) bucket_of_[i] = b;
}

}  // namespace lockstep
