// What DistributedDataParallel tells of its backward passes.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

namespace lockstep {

// A gradient with an infinity or a NaN: where it was before any gradients were summed.
struct NonFiniteGradient {
  int rank;
  std::string parameter;
};

// Where the time of averaged passes went, since the beginning. On a CUDA device it is that of
// enqueueing them, and the wait for the device is part of `wait`.
struct BackwardTimes {
  std::chrono::nanoseconds copy{};    // Into buckets.
  std::chrono::nanoseconds wait{};    // For the other ranks and, with overlap, for the thread.
  std::chrono::nanoseconds reduce{};  // Summing; with overlap, beside backward().
};

}  // namespace lockstep
