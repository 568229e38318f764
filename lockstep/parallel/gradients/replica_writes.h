// Detects that the ranks write to their replicas at different places of the program, for example
// because an optimizer calls its closure more often on one rank than on another.
//
// Each rank counts the writes to its parameters between two passes, by their version counters.
// Another address, for example by torch::load(), counts as a write. A difference alone is no error:
// rank 0 may lend averages to its replica and take them back, and the owner of a parameter in ZeRO
// steps it while others receive it. Unequal weights alone are none either: ranks may perturb their
// weights for a pass. Both together are one.
//
// Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/tensor/named_tensors.h"

namespace lockstep::parallel {

// Of one rank, in one backward pass. Travels as it lies in memory.
struct ReplicaWrites {
  std::int64_t count = 0;     // Writes since the last pass, over all parameters.
  std::uint64_t pattern = 0;  // Digest of the number of writes to each parameter.
  std::uint64_t weights = 0;  // Digest of one element of each parameter.
};

class WriteCounts {
 public:
  // `parameters`, in CPU memory, outlive this.
  explicit WriteCounts(const NamedTensors& parameters);

  // Since the last call, or since construction. `pass`, equal on all ranks, chooses the elements.
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
