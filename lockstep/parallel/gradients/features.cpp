// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/features.h"

#include <algorithm>
#include <string_view>
#include <tuple>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::parallel {
namespace {

// Each of `some` excludes each of `others`.
struct Exclusion {
  std::vector<Feature> some;
  std::vector<Feature> others;
  std::string_view reason;
};

// The first row that applies gives the reason.
const std::vector<Exclusion>& exclusions() {
  using enum Feature;
  static const std::vector<Exclusion> rows{
      {{share_parameters},
       {overlap, bucket_sizes, bucket_views, join},
       "its gradients are averaged after backward(), in no buckets"},
      {{comm_hook, shard_gradients, sparse_gradients},
       {comm_hook, shard_gradients, share_parameters},
       "each averages gradients in another way"},
      {{shard_gradients},
       {bucket_views, join},
       "only the rank that steps a parameter has its mean gradient"},
      {{experts},
       {over_samples, skip_non_finite, share_parameters, shard_gradients, join},
       "their gradients are means over ranks and not checked, and every forward() needs all ranks"},
      {{noise_scale},
       {static_graph, over_samples, share_parameters, comm_hook, shard_gradients, join,
        sparse_gradients, experts},
       "it compares the mean of all gradients with each rank's, of equally many samples"},
      {{deterministic},
       {sparse_gradients, experts},
       "it sums dense gradients of the same parameters over all ranks"},
      {{share_parameters, deterministic, over_samples, shard_gradients, join, noise_scale},
       {common_parameters},
       "only one of the two would average or measure their gradients"},
  };
  return rows;
}

bool contains(const std::vector<Feature>& features, Feature feature) {
  return std::ranges::find(features, feature) != features.end();
}

std::vector<Feature> excluding_common_parameters() {
  std::vector<Feature> all;
  for (const Exclusion& row : exclusions())
    if (contains(row.others, Feature::common_parameters))
      all.insert(all.end(), row.some.begin(), row.some.end());
  return all;
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
      return "share_parameters or FullyShardedDataParallel";
    case deterministic:
      return "DeterministicDataParallel";
    case skip_non_finite:
      return "NonFinite::skip";
    case comm_hook:
      return "register_comm_hook()";
    case shard_gradients:
      return "shard_gradients()";
    case join:
      return "join()";
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
  if (options.share_parameters) require_allowed(share_parameters);
  set(share_parameters, options.share_parameters);
}

bool Features::has(Feature feature) const {
  const auto i = static_cast<std::size_t>(feature);
  return in_use_[i] || !users_[i].expired();
}

void Features::require_allowed(Feature feature) const {
  require(!has(feature), [&] { return std::string(name_of(feature)) + " is in use already"; });
  for (const Exclusion& row : exclusions())
    for (const auto& [side, excluded] :
         {std::tie(row.some, row.others), std::tie(row.others, row.some)})
      for (const Feature other : excluded)
        if (contains(side, feature) && has(other))
          throw Error(Fault::unsupported,
                      std::string(name_of(feature)) + " does not go together with " +
                          std::string(name_of(other)) + ": " + std::string(row.reason));
}

bool Features::allow_common_parameters() const {
  return std::ranges::none_of(excluding_common_parameters(),
                              [this](Feature feature) { return has(feature); });
}

void Features::refuse_common_parameters(const std::string& names) {
  std::string excluding;
  for (const Feature feature : excluding_common_parameters())
    excluding += (excluding.empty() ? "" : ", ") + std::string(name_of(feature));
  throw Error(Fault::unsupported,
              "another DistributedDataParallel has these parameters too: " + names +
                  ". Two of them average gradients together only without any of " + excluding +
                  ": make one of a module that holds both modules");
}

}  // namespace lockstep::parallel
