// Reports of DistributedDataParallel about its backward passes.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

namespace lockstep {

// A gradient with an infinity or a NaN, and where it was found before any gradients were summed.
struct NonFiniteGradient {
  int rank;
  std::string parameter;
};

// Time spent in averaged passes since the beginning. On a CUDA device, times are those of
// enqueueing, and `wait` includes the wait for the device.
struct BackwardTimes {
  std::chrono::nanoseconds copy{};    // Copying into buckets.
  std::chrono::nanoseconds wait{};    // Waiting for other ranks and, with overlap, for the thread.
  std::chrono::nanoseconds reduce{};  // Summing; with overlap, in parallel to backward().
};

}  // namespace lockstep
