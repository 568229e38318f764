// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/features.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::parallel {
namespace {

// A feature in use, and a requested one that it excludes.
struct Exclusion {
  Feature wanted;
  Feature in_use;
  std::string_view reason;
  Fault fault = Fault::unsupported;
};

constexpr std::string_view no_buckets = "its gradients lie in no buckets";
constexpr std::string_view one_averages = "only one of the two would average their gradients";
constexpr std::string_view not_in_backward = "its gradients are not averaged in backward()";
constexpr std::string_view without_inputs =
    "a rank without inputs would have to go on stepping its parameters";
constexpr std::string_view other_experts = "ranks have different ones";
constexpr std::string_view only_parts = "a rank has only a part of the mean gradients";
constexpr std::string_view hooks_change = "a hook may give other gradients than their mean";
constexpr std::string_view need_dense = "it takes dense gradients only";
constexpr std::string_view microbatches_only = "train_microbatches() sums gradients";

std::span<const Exclusion> exclusions() {
  using enum Feature;
  static constexpr Exclusion rows[] = {
      {share_parameters, overlap,
       "SharedOptimizer averages gradients in step(), not in backward()"},
      {share_parameters, bucket_sizes, no_buckets},
      {share_parameters, bucket_views, no_buckets},
      {share_parameters, common_parameters, one_averages},

      {deterministic, overlap, "gradients are summed after backward()"},
      {deterministic, static_graph, "use find_unused_parameters"},
      {deterministic, bucket_sizes, no_buckets},
      {deterministic, bucket_views, no_buckets},
      {deterministic, common_parameters, one_averages},

      {over_samples, common_parameters, "each counts its own samples"},

      {comm_hook, deterministic, microbatches_only, Fault::misuse},
      {comm_hook, share_parameters, no_buckets},
      {comm_hook, shard_gradients, no_buckets},
      {comm_hook, noise_scale, hooks_change},

      {shard_gradients, comm_hook, "a hook takes whole buckets"},
      {shard_gradients, bucket_views, no_buckets},
      {shard_gradients, share_parameters, not_in_backward},
      {shard_gradients, deterministic, not_in_backward},
      {shard_gradients, common_parameters, one_averages},
      {shard_gradients, join, without_inputs},

      {join, deterministic, microbatches_only, Fault::misuse},
      {join, share_parameters, "every rank steps its slice, so all must make equally many passes"},
      {join, shard_gradients, without_inputs},
      {join, common_parameters,
       "a rank without inputs cannot determine which of the two averages them"},

      {no_sync, deterministic, microbatches_only, Fault::misuse},

      {noise_scale, static_graph, "a gradient may come in several parts"},
      {noise_scale, over_samples, "batches have unequal sizes"},
      {noise_scale, share_parameters, only_parts},
      {noise_scale, deterministic, microbatches_only},
      {noise_scale, shard_gradients, only_parts},
      {noise_scale, comm_hook, hooks_change},
      {noise_scale, experts, other_experts},
      {noise_scale, common_parameters, "only one of the two measures their gradients"},
      {shard_gradients, noise_scale, only_parts},
      {join, noise_scale, "a rank without inputs has no gradient"},

      {sparse_gradients, share_parameters,
       "ranks that share parameters, also by FullyShardedDataParallel, step slices of dense "
       "gradients"},
      {sparse_gradients, deterministic, "train_microbatches() sums dense gradients"},
      {comm_hook, sparse_gradients, need_dense},
      {shard_gradients, sparse_gradients, need_dense},
      {noise_scale, sparse_gradients, need_dense},

      {experts, over_samples, "their gradients are means over ranks"},
      {experts, share_parameters, other_experts},
      {experts, skip_non_finite, "their gradients would still be stepped"},
      {experts, deterministic, "their gradients are summed in backward()"},
      {shard_gradients, experts, other_experts},
      {join, experts, "they need all ranks in every forward()"},
  };
  return rows;
}

constexpr std::string_view name_of(Feature feature) {
  using enum Feature;
  switch (feature) {
    case overlap:
      return "overlap";
    case bucket_sizes:
      return "bucket_cap_mb";
    case bucket_views:
      return "gradient_as_bucket_view";
    case static_graph:
      return "static_graph";
    case over_samples:
      return "GradientMean::over_samples";
    case share_parameters:
      return "share_parameters";
    case deterministic:
      return "deterministic";
    case skip_non_finite:
      return "NonFinite::skip";
    case comm_hook:
      return "register_comm_hook()";
    case shard_gradients:
      return "shard_gradients()";
    case join:
      return "join()";
    case no_sync:
      return "no_sync()";
    case noise_scale:
      return "NoiseScale";
    case sparse_gradients:
      return "a parameter with sparse gradients";
    case experts:
      return "experts that are cut over ranks";
    case common_parameters:
      return "another DistributedDataParallel of the same parameters";
  }
  return "unknown";
}

}  // namespace

Features::Features(const DistributedDataParallelOptions& options) {
  using enum Feature;
  set(overlap, options.overlap.value_or(false));
  set(bucket_sizes, options.bucket_cap_mb.has_value() || !options.bucket_caps_mb.empty());
  set(bucket_views, options.gradient_as_bucket_view);
  set(static_graph, options.static_graph);
  set(over_samples, options.mean == GradientMean::over_samples);
  set(skip_non_finite, options.non_finite == NonFinite::skip);
  for (const auto& [feature, wanted] : {std::pair(share_parameters, options.share_parameters),
                                        std::pair(deterministic, options.deterministic != 0)}) {
    if (wanted) require_allowed(feature);
    set(feature, wanted);
  }
}

bool Features::has(Feature feature) const {
  const auto i = static_cast<std::size_t>(feature);
  return in_use_[i] || !users_[i].expired();
}

void Features::require_allowed(Feature feature) const {
  require(!has(feature), [&] { return std::string(name_of(feature)) + " is in use already"; });
  for (const Exclusion& row : exclusions())
    if (row.wanted == feature && has(row.in_use))
      throw Error(row.fault, std::string(name_of(feature)) + " does not go together with " +
                                 std::string(name_of(row.in_use)) + ": " + std::string(row.reason));
}

bool Features::allow_common_parameters() const {
  return std::ranges::none_of(exclusions(), [&](const Exclusion& row) {
    return row.in_use == Feature::common_parameters && has(row.wanted);
  });
}

void Features::refuse_common_parameters(const std::string& names) {
  std::string excluding;
  for (const Exclusion& row : exclusions())
    if (row.in_use == Feature::common_parameters)
      excluding += (excluding.empty() ? "" : ", ") + std::string(name_of(row.wanted));
  throw Error(Fault::unsupported,
              "another DistributedDataParallel has these parameters too: " + names +
                  ". Two of them average gradients together only without any of " + excluding +
                  ": make one of a module that holds both modules");
}

}  // namespace lockstep::parallel
