// Computes one epoch of a GroupedOrder (distributed_sampler.h).

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/data/distributed_sampler.h"

namespace lockstep::data {

struct GroupedEpoch {
  std::vector<std::size_t> groups;  // In reading order.
  at::Tensor samples;               // int64; undefined for 0, 1, 2, ...
};

GroupedEpoch draw_grouped_epoch(const GroupedOrder& order, bool shuffle, std::uint64_t seed,
                                std::int64_t epoch);

std::size_t samples_in(const GroupedOrder& order);

// Frozen: checkpoints contain it.
std::uint64_t digest_of(const GroupedOrder& order);

}  // namespace lockstep::data
