// One collective of an engine, called by HostsBackend, and the communicators that it runs on.
//
// An engine that cannot cancel needs memory that outlives its caller, so user memory is copied for
// it.
//
// Thread safety: that of its group.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "lockstep/comm/hosts/hosts_backend.h"

namespace lockstep {

// Whether the output is also the input.
constexpr bool is_in_place(Operation operation) {
  return operation == Operation::all_reduce || operation == Operation::broadcast ||
         operation == Operation::reduce;
}

class HostsBackend::Crossing {
 public:
  // Makes the necessary copies. `slot` distinguishes crossings that exist at the same time.
  // `backend`, `call` and `engine` must outlive this object. The collective's counts and memory
  // must outlive the call.
  Crossing(HostsBackend& backend, const Call& call, EngineCommunicator& engine,
           const Collective& collective, std::size_t slot = 0);
  ~Crossing();  // Gives up a running call: EngineCommunicator::give_up().
  Crossing(const Crossing&) = delete;
  Crossing& operator=(const Crossing&) = delete;

  // At most one runs at a time on an engine's communicator.
  void start();

  // Blocking: until it is complete. Errors: as Backend::run().
  void wait();

  // Copies the result to its destination.
  void deliver();

 private:
  void keep(Buffer& buffer, std::size_t scratch, bool is_read);

  HostsBackend& backend_;
  const Call& call_;
  EngineCommunicator& engine_;
  Collective collective_;
  const Buffer result_;  // Destination of the result.
  std::shared_ptr<std::vector<std::shared_ptr<const void>>> kept_;
  bool is_under_way_ = false;
};

}  // namespace lockstep
