// Detects, by version counters, ranks that write to their replicas differently
// (docs/internals/gradients.md).
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/tensor/named_tensors.h"

namespace lockstep::parallel {

// Sent as its memory image.
struct ReplicaWrites {
  std::int64_t count = 0;     // Since the last pass, over all parameters.
  std::uint64_t pattern = 0;  // Digest of each parameter's number of writes.
  std::uint64_t weights = 0;  // Digest of one element of each parameter.
};

class WriteCounts {
 public:
  // `parameters` are in CPU memory and outlive this object.
  explicit WriteCounts(const NamedTensors& parameters);

  // Since the last call. `pass`, equal on all ranks, selects elements. Another address counts as a
  // write.
  ReplicaWrites count(std::int64_t pass);

 private:
  struct Seen {
    std::uint32_t writes;
    const void* data;
  };

  const NamedTensors& parameters_;
  std::vector<Seen> seen_;  // By parameter.
};

}  // namespace lockstep::parallel
