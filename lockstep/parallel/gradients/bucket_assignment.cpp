// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/bucket_assignment.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::parallel {
namespace {

constexpr double mib = 1024 * 1024;
constexpr double default_cap_mb = 25;
constexpr auto first_bucket_bytes = static_cast<std::size_t>(mib);

std::size_t bytes_of(double cap_mb) {
  require(cap_mb > 0, "the capacity of a bucket is not positive");
  return static_cast<std::size_t>(cap_mb * mib);
}

struct OpenBucket {
  at::ScalarType dtype;
  at::Device device;
  std::vector<std::size_t> indices = {};
  std::size_t bytes = 0;
  std::size_t limit = 0;  // Index of its limit.
};

OpenBucket& open_bucket_of(const at::Tensor& tensor, std::vector<OpenBucket>& buckets) {
  const auto found = std::find_if(buckets.begin(), buckets.end(), [&](const OpenBucket& bucket) {
    return bucket.dtype == tensor.scalar_type() && bucket.device == tensor.device();
  });
  if (found != buckets.end()) return *found;
  return buckets.emplace_back(OpenBucket{tensor.scalar_type(), tensor.device()});
}

// PyTorch's rule. With share_parameters, SharedOptimizer averages and needs no buckets.
bool learns_from(const DistributedDataParallelOptions& options) {
  return !options.share_parameters && (!options.find_unused_parameters || options.static_graph);
}

BucketLimits limits_of(const DistributedDataParallelOptions& options) {
  const bool whole_at_first = options.static_graph || !options.find_unused_parameters;
  return bucket_limits(options.bucket_cap_mb, options.bucket_caps_mb, whole_at_first);
}

}  // namespace

BucketLimits bucket_limits(std::optional<double> cap_mb, const std::vector<double>& caps_mb,
                           bool whole_at_first) {
  require(!cap_mb || caps_mb.empty(), "bucket_cap_mb and bucket_caps_mb are both given");
  if (!caps_mb.empty()) {
    std::vector<std::size_t> caps;
    for (const double each : caps_mb) caps.push_back(bytes_of(each));
    return {.first = caps, .rebuilt = caps};
  }
  const std::size_t cap = bytes_of(cap_mb.value_or(default_cap_mb));
  std::vector<std::size_t> caps{cap};
  if (!cap_mb) caps.insert(caps.begin(), first_bucket_bytes);
  if (whole_at_first) return {.first = {std::numeric_limits<std::size_t>::max()}, .rebuilt = caps};
  return {.first = caps, .rebuilt = caps};
}

BucketAssignment compute_bucket_assignment_by_size(at::TensorList tensors,
                                                   const std::vector<std::size_t>& limits,
                                                   const std::vector<std::size_t>& indices,
                                                   const std::vector<bool>& sparse) {
  require(!limits.empty(), "buckets have no limit");
  require(indices.empty() || indices.size() == tensors.size(),
          "the number of indices is not that of the tensors");
  BucketAssignment closed;
  std::vector<OpenBucket> open;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::size_t index = indices.empty() ? i : indices[i];
    if (!sparse.empty() && sparse[index]) {
      closed.push_back({index});
      continue;
    }
    OpenBucket& bucket = open_bucket_of(tensors[i], open);
    bucket.indices.push_back(index);
    bucket.bytes += tensors[i].nbytes();
    if (bucket.bytes < limits[bucket.limit]) continue;
    closed.push_back(std::exchange(bucket.indices, {}));
    bucket.bytes = 0;
    bucket.limit = std::min(bucket.limit + 1, limits.size() - 1);
  }
  for (OpenBucket& bucket : open)
    if (!bucket.indices.empty()) closed.push_back(std::move(bucket.indices));
  if (indices.empty())
    std::sort(closed.begin(), closed.end(), [](const auto& a, const auto& b) {
      return *std::min_element(a.begin(), a.end()) < *std::min_element(b.begin(), b.end());
    });
  return closed;
}

// --- BucketOrder --------------------------------------------------------------------------------

BucketOrder::BucketOrder(const NamedTensors& parameters,
                         const DistributedDataParallelOptions& options,
                         std::optional<BucketAssignment> given, std::vector<bool> sparse)
    : is_given_(given.has_value()),
      sparse_(std::move(sparse)),
      limits_(limits_of(options)),
      bucket_of_(parameters.size()),
      learns_(is_given_ || learns_from(options)) {
  if (!given) {
    std::vector<at::Tensor> tensors;
    for (const auto& [name, parameter] : parameters) tensors.push_back(parameter);
    given = compute_bucket_assignment_by_size(tensors, limits_.first, {}, sparse_);
    std::reverse(given->begin(), given->end());
  }
  assign(std::move(*given));
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
  for (std::size_t i = 0; i < parameters.size(); ++i)  // Unused in a static graph.
    if (std::find(order.begin(), order.end(), i) == order.end()) order.push_back(i);
  group.broadcast({.data = order.data(), .count = order.size(), .dtype = DType::int64}, 0,
                  {.label = "order of gradients"});
  if (is_given_) return by_arrival(order);
  std::vector<at::Tensor> in_order;
  for (const std::size_t i : order) in_order.push_back(parameters[i].second);
  return compute_bucket_assignment_by_size(in_order, limits_.rebuilt, order, sparse_);
}

BucketAssignment BucketOrder::by_arrival(const std::vector<std::size_t>& order) const {
  std::vector<std::size_t> last(assignment_.size(), 0);
  for (std::size_t i = 0; i < order.size(); ++i) last[bucket_of_[order[i]]] = i;
  std::vector<std::size_t> buckets(assignment_.size());
  std::iota(buckets.begin(), buckets.end(), std::size_t{0});
  std::sort(buckets.begin(), buckets.end(),
            [&](std::size_t a, std::size_t b) { return last[a] < last[b]; });
  BucketAssignment result;
  for (const std::size_t bucket : buckets) result.push_back(assignment_[bucket]);
  return result;
}

void BucketOrder::assign(BucketAssignment assignment) {
  assignment_ = std::move(assignment);
  for (std::size_t b = 0; b < assignment_.size(); ++b)
    for (const std::size_t i : assignment_[b]) bucket_of_[i] = b;
}

}  // namespace lockstep::parallel
