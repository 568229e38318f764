// Detects ranks that write to their replicas at different places of the program, by version
// counters. Ranks fail if both the writes since the last pass and the weights differ
// (docs/internals/gradients.md).
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/tensor/named_tensors.h"

namespace lockstep::parallel {

// Before one backward pass. Sent as its memory image.
struct ReplicaWrites {
  std::int64_t count = 0;     // Writes since the last pass, over all parameters.
  std::uint64_t pattern = 0;  // Digest of the number of writes to each parameter.
  std::uint64_t weights = 0;  // Digest of one element of each parameter.
};

class WriteCounts {
 public:
  // `parameters` are in CPU memory and outlive this object.
  explicit WriteCounts(const NamedTensors& parameters);

  // Since the last call or construction. `pass`, equal on all ranks, selects the elements. Another
  // address counts as a write.
  ReplicaWrites count(std::int64_t pass);

 private:
  struct Seen {
    std::uint32_t writes;
    const void* data;
  };

  const NamedTensors& parameters_;
  std::vector<Seen> seen_;  // By parameter, in the last call.
};

}  // namespace lockstep::parallel
