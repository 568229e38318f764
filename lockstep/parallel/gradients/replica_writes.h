// Detects ranks that write to their replicas at different places of the program. An example is an
// optimizer that calls its closure more often on one rank than on another.
//
// Each rank counts the writes to its parameters between two passes, by their version counters.
// Another address, for example by torch::load(), counts as a write. Different counts alone are no
// error. Rank 0 may exchange its weights for averages and back. In ZeRO the owner steps a parameter
// while others receive it. Different weights alone are no error either: ranks may perturb their
// weights for a pass. Both together are an error.
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
