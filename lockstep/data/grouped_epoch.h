// One epoch in a GroupedOrder.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/data/distributed_sampler.h"

namespace lockstep::data {

struct GroupedEpoch {
  std::vector<std::size_t> groups;  // In the order in which they are read.
  at::Tensor samples;               // int64; undefined for 0, 1, 2, ...
};

// Without `shuffle`, all samples are in the order of their numbers.
GroupedEpoch draw_grouped_epoch(const GroupedOrder& order, bool shuffle, std::uint64_t seed,
                                std::int64_t epoch);

// Samples of all groups together.
std::size_t samples_in(const GroupedOrder& order);

// A number that differs between orders of other groups or samples. Frozen: checkpoints have it.
std::uint64_t digest_of(const GroupedOrder& order);

}  // namespace lockstep::data
