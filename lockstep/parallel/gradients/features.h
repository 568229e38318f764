// Features of a DistributedDataParallel, and their exclusions. Calls that a class for data parallel
// training lacks need no row.
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/parallel/gradients/distributed_data_parallel_options.h"

namespace lockstep::parallel {

enum class Feature : std::uint8_t {
  // By the options.
  overlap,
  bucket_sizes,
  bucket_views,
  static_graph,
  over_samples,
  share_parameters,
  skip_non_finite,
  // By calls.
  comm_hook,
  shard_gradients,
  join,
  noise_scale,
  // By the class.
  deterministic,
  // By the module.
  sparse_gradients,
  experts,
  // Parameters of another DistributedDataParallel.
  common_parameters,
};

class Features {
 public:
  // Errors: as require_allowed().
  explicit Features(const DistributedDataParallelOptions& options);

  bool has(Feature feature) const;
  void set(Feature feature, bool used) { in_use_[static_cast<std::size_t>(feature)] = used; }

  // In use while `user` exists.
  void set_while(Feature feature, const std::shared_ptr<const void>& user) {
    users_[static_cast<std::size_t>(feature)] = user;
  }

  // Errors: misuse if `feature` is in use already; unsupported if a feature in use excludes it.
  void require_allowed(Feature feature) const;

  // Whether common_parameters is allowed.
  bool allow_common_parameters() const;
  [[noreturn]] static void refuse_common_parameters(const std::string& names);

 private:
  static constexpr std::size_t count = static_cast<std::size_t>(Feature::common_parameters) + 1;

  std::bitset<count> in_use_;
  std::array<std::weak_ptr<const void>, count> users_;
};

}  // namespace lockstep::parallel
