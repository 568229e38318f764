// Some ranks of the job, and their collectives through MPI.
//
// Everything but reductions moves bytes, whatever their type. MPI counts in int: what is longer
// goes in several calls, which all ranks cut alike.
//
// MPI waits without a deadline and cannot be interrupted, so that config.timeout_ms has no meaning
// here, and the engine no cancel().
//
// Thread safety: one thread at a time; distinct communicators are independent.
// Errors: plugin::Failed, from which no communicator recovers.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>

#include "lockstep/comm/engine/engine_abi.h"
#include "lockstep/comm/engine/mpi/library.h"

namespace lockstep::mpi {

class Communicator {
 public:
  // Of config.world_ranks of duplicated_world(config.world). Collective over these ranks alone.
  explicit Communicator(const lockstep_engine_config& config);

  // Communicates with nobody. After a failure MPI's part is left as it is, since peers may be in it
  // for ever; so is everything when MPI has ended meanwhile.
  ~Communicator();

  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // A call has failed.
  void give_up() { is_whole_ = false; }

  // After a call that moves more than plugin::sent_at_once: nothing of it is under way any more.
  void settle();

  void all_reduce(const lockstep_buffer& data, std::uint8_t reduce_op);
  void broadcast(const lockstep_buffer& data, int root);
  void reduce(const lockstep_buffer& data, int root, std::uint8_t reduce_op);
  void all_gather(const lockstep_buffer& input, const lockstep_buffer& output,
                  const std::size_t* counts);
  void reduce_scatter(const lockstep_buffer& input, const lockstep_buffer& output,
                      const std::size_t* counts, std::uint8_t reduce_op);
  void all_to_all(const lockstep_buffer& input, const lockstep_buffer& output,
                  const std::size_t* send_counts, const std::size_t* receive_counts);

 private:
  Unfinished unfinished_;  // First: a communicator that could not be made is one, too.
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 0;
  bool is_whole_ = true;
};

}  // namespace lockstep::mpi
