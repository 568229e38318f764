// Detects ranks that write to their replicas at different places of the program. An example is an
// optimizer that calls its closure more often on one rank than on another.
//
// Counts the writes to each parameter between two passes, by its version counter. Another address,
// for example by torch::load(), counts as a write. Ranks fail if both their counts and their
// weights differ: either difference alone is legal (docs/internals/gradients.md).
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/tensor/named_tensors.h"

namespace lockstep::parallel {

// The writes of one rank before one backward pass. Sent as its memory image.
struct ReplicaWrites {
  std::int64_t count = 0;     // Writes since the last pass, over all parameters.
  std::uint64_t pattern = 0;  // Digest of the number of writes to each parameter.
  std::uint64_t weights = 0;  // Digest of one element of each parameter.
};

class WriteCounts {
 public:
  // `parameters` are in CPU memory and outlive this object.
  explicit WriteCounts(const NamedTensors& parameters);

  // Writes since the last call or construction. `pass`, equal on all ranks, selects the elements.
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
