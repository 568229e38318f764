// An NCCL communicator, on one device. It is non-blocking: this class waits for peers, until a
// timeout or cancel(). Enqueued work may still run when a call returns.
//
// Thread safety: any thread may call cancel(); one thread at a time for the others.
// Errors: Failed(timeout); Failed(aborted) after cancel(); Failed(system) with NCCL's text, also
// for a lost peer, which NCCL does not identify. Afterwards only the destructor may be called.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>

#include "lockstep/comm/engine/engine_abi.h"
#include "lockstep/comm/engine/plugin.h"

namespace lockstep::comm::engines {

struct Reduction {
  ncclDataType_t type;
  ncclRedOp_t op;
};

// Empty for bitwise operations and 16-bit integers, which NCCL lacks. A bool is a byte: its sum is
// the maximum, its product the minimum.
std::optional<Reduction> reduction_of(std::uint8_t dtype, std::uint8_t reduce_op);

class Communicator {
 public:
  // Collective. Blocking, for `timeout_ms` at most. Errors: also of require_device() and of the
  // exchange of NCCL's id.
  explicit Communicator(const lockstep_engine_config& config);

  // Waits at most a few seconds for enqueued work, then ends it.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Ends running work on the device too.
  void cancel();

  static bool combines(std::uint8_t dtype, std::uint8_t reduce_op) {
    return reduction_of(dtype, reduce_op).has_value();
  }

  void run(const lockstep_collective& call) { plugin::run_native(*this, call); }

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
  using Clock = std::chrono::steady_clock;

  template <class Act>
  void enqueue(const char* what, Act act);
  void exchange(const char* what, cudaStream_t stream, const plugin::Parts& sent,
                const plugin::Parts& received);
  void settle(const char* what, ncclResult_t result, Clock::time_point deadline,
              std::unique_lock<std::mutex>& lock);
  void abort_locked();

  const int rank_;
  const int size_;
  const int device_;
  const std::chrono::milliseconds timeout_;

  std::mutex mutex_;  // Guards the handle, which an abort frees.
  ncclComm_t handle_ = nullptr;
};

}  // namespace lockstep::comm::engines
