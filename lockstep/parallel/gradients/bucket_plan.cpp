// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/bucket_plan.h"

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
  std::size_t limit = 0;
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

BucketPlan::BucketPlan(const NamedTensors& parameters,
                       const DistributedDataParallelOptions& options,
                       std::optional<BucketAssignment> given, std::vector<bool> sparse)
    : is_given_(given.has_value()),
      is_static_(options.static_graph),
      sparse_(std::move(sparse)),
      limits_(limits_of(options)),
      parameters_(parameters.size()),
      is_recording_counts_(is_static_),
      is_recording_order_(is_given_ || learns_from(options)) {
  if (!given) {
    std::vector<at::Tensor> tensors;
    for (const auto& [name, parameter] : parameters) tensors.push_back(parameter);
    given = compute_bucket_assignment_by_size(tensors, limits_.first, {}, sparse_);
    std::reverse(given->begin(), given->end());
  }
  assign(std::move(*given));
}

void BucketPlan::assign(BucketAssignment assignment) {
  assignment_ = std::move(assignment);
  for (std::size_t b = 0; b < assignment_.size(); ++b)
    for (const std::size_t i : assignment_[b]) parameters_[i].bucket = b;
}

void BucketPlan::begin_pass(std::vector<bool> awaited, bool keeps_order) {
  if (is_recording_order_ && !keeps_order) arrival_.clear();
  pending_.assign(assignment_.size(), 0);
  next_ = 0;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    if (is_recording_counts_) parameter.expected = 0;  // An Error may have ended the last pass.
    parameter.remaining = parameter.expected;
    parameter.is_awaited = parameter.expected > 0 && awaited[i];
    parameter.is_taken = false;
    if (parameter.is_awaited) ++pending_[parameter.bucket];
  }
}

BucketPlan::Arrival BucketPlan::note_arrival(std::size_t index) {
  Parameter& parameter = parameters_[index];
  if (is_recording_counts_) {
    ++parameter.expected;
    return Arrival::recorded;
  }
  if (parameter.remaining == 0) return Arrival::repeated;
  return --parameter.remaining > 0 ? Arrival::incomplete : Arrival::complete;
}

void BucketPlan::note_taken(std::size_t index) {
  Parameter& parameter = parameters_[index];
  if (std::exchange(parameter.is_awaited, false)) --pending_[parameter.bucket];
  parameter.is_taken = true;
  if (is_recording_order_) arrival_.push_back(index);
}

void BucketPlan::end_pass() {
  if (!is_recording_counts_) is_rebuild_due_ = is_recording_order_;
  is_recording_counts_ = false;
}

std::optional<BucketAssignment> BucketPlan::rebuilt(const NamedTensors& parameters,
                                                    const ProcessGroup& group) {
  if (!std::exchange(is_rebuild_due_, false)) return {};
  is_recording_order_ = false;
  std::vector<std::size_t> order = std::exchange(arrival_, {});
  for (std::size_t i = 0; i < parameters.size(); ++i)  // Unused in a static graph.
    if (std::find(order.begin(), order.end(), i) == order.end()) order.push_back(i);
  group.broadcast({.data = order.data(), .count = order.size(), .dtype = DType::int64}, 0,
                  {.label = "order of gradients"});
  std::vector<at::Tensor> in_order;
  for (const std::size_t i : order) in_order.push_back(parameters[i].second);
  BucketAssignment result =
      is_given_ ? by_arrival(order)
                : compute_bucket_assignment_by_size(in_order, limits_.rebuilt, order, sparse_);
  if (result == assignment_) return {};
  return result;
}

BucketAssignment BucketPlan::by_arrival(const std::vector<std::size_t>& order) const {
  std::vector<std::size_t> last(assignment_.size(), 0);
  for (std::size_t i = 0; i < order.size(); ++i) last[parameters_[order[i]].bucket] = i;
  std::vector<std::size_t> buckets(assignment_.size());
  std::iota(buckets.begin(), buckets.end(), std::size_t{0});
  std::sort(buckets.begin(), buckets.end(),
            [&](std::size_t a, std::size_t b) { return last[a] < last[b]; });
  BucketAssignment result;
  for (const std::size_t bucket : buckets) result.push_back(assignment_[bucket]);
  return result;
}

}  // namespace lockstep::parallel
