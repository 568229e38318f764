// A communicator of some ranks of the job; its collectives use MPI.
//
// All calls except reductions move bytes, for any type. MPI counts in int, so longer data takes
// several calls, which are equal on all ranks.
//
// MPI waits without a deadline and cannot be interrupted. So config.timeout_ms has no effect here,
// and there is no cancel().
//
// Thread safety: one thread at a time; distinct communicators are independent.
// Errors: plugin::Failed; the communicator is unusable afterwards.

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
  // Makes a communicator of config.world_ranks in duplicated_world(config.world). Collective over
  // these ranks only.
  explicit Communicator(const lockstep_engine_config& config);

  // Does not communicate. After a failure it leaves MPI's communicator, because peers may never
  // free it. After the end of MPI it leaves everything.
  ~Communicator();

  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Runs `act`, a collective that moves `bytes` in total. After one of more than
  // plugin::sent_at_once, waits until all its data have arrived. Records a failure.
  template <class Act>
  void run(std::size_t bytes, Act act) {
    try {
      act();
      if (bytes > plugin::sent_at_once) settle();
    } catch (...) {
      is_whole_ = false;
      throw;
    }
  }

  static bool combines(std::uint8_t dtype, std::uint8_t reduce_op);

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
  void settle();

  Unfinished unfinished_;  // First member: it also counts communicators whose constructor throws.
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0;
  int size_ = 0;
  bool is_whole_ = true;
};

}  // namespace lockstep::comm::mpi
