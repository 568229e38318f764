// Collectives on registered memory: every rank works directly on its peers' buffers.
//
// Thread safety: one thread only.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "lockstep/comm/core/backend.h"
#include "lockstep/comm/shm/barrier.h"
#include "lockstep/comm/shm/reduction.h"
#include "lockstep/comm/shm/regions.h"

namespace lockstep::comm {

// Whether peers can read this rank's input, or write its output, directly.
bool can_read_inputs(Operation operation);
bool can_write_outputs(Operation operation);

class InPlace {
 public:
  // All arguments must outlive it.
  InPlace(const Barrier& barrier, Regions& regions, Reduction& reduction, int rank, int ranks)
      : barrier_(barrier), regions_(regions), reduction_(reduction), rank_(rank), size_(ranks) {}

  // Whether all ranks' inputs, or all outputs, can be reached. All ranks get the same answer.
  bool is_possible() const;

  // Does this rank's part. The result is complete on all ranks after their next rendezvous.
  void run(const Collective& collective);

 private:
  bool can_reach(std::uint64_t Lane::Entry::*place) const;
  std::byte* input_of(int rank) const;
  std::byte* output_of(int rank) const;
  void reduce_slice(const Collective& collective);
  void reduce_part(const Collective& collective);
  void read(const Collective& collective);
  void write(const Collective& collective);

  const Barrier& barrier_;
  Regions& regions_;
  Reduction& reduction_;
  const int rank_;
  const int size_;
};

}  // namespace lockstep::comm
