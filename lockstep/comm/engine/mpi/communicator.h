// Collectives of some ranks of the job, by MPI. All except reductions move bytes. MPI counts in
// int: longer data takes several calls, equal on all ranks.
//
// MPI cannot be interrupted: the timeouts in `config` have no effect, and there is no cancel().
//
// Thread safety: one thread at a time; distinct communicators are independent. Errors:
// plugin::Failed; the communicator is unusable afterwards.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include "lockstep/comm/engine/engine_abi.h"
#include "lockstep/comm/engine/mpi/library.h"
#include "lockstep/comm/engine/plugin.h"

namespace lockstep::comm::mpi {

class Communicator {
 public:
  // Collective only over config.world_ranks, ranks of duplicated_world(config.world).
  explicit Communicator(const lockstep_engine_config& config);

  // Does not communicate. Does not free MPI's communicator after a failure, because peers may never
  // do so, nor after the end of MPI.
  ~Communicator();

  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  void run(const lockstep_collective& call);

  static bool combines(std::uint8_t dtype, std::uint8_t reduce_op);

  void all_reduce(const lockstep_collective& call);
  void broadcast(const lockstep_collective& call);
  void reduce(const lockstep_collective& call);
  void all_gather(const lockstep_collective& call);
  void reduce_scatter(const lockstep_collective& call);
  void all_to_all(const lockstep_collective& call);

  static constexpr plugin::Native<Communicator> natives[] = {
      {Operation::all_reduce, &Communicator::all_reduce},
      {Operation::broadcast, &Communicator::broadcast},
      {Operation::reduce, &Communicator::reduce},
      {Operation::all_gather, &Communicator::all_gather},
      {Operation::reduce_scatter, &Communicator::reduce_scatter},
      {Operation::all_to_all, &Communicator::all_to_all},
  };

 private:
  Unfinished unfinished_;  // First member: it also counts communicators whose constructor throws.
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 0;
  bool is_whole_ = true;
};

}  // namespace lockstep::comm::mpi
