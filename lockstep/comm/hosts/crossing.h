// One collective of an engine's, of HostsBackend.
//
// An engine that cannot cancel gets memory to work on that outlives its caller: a user's is copied.
//
// Thread safety: none; that of its group.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "lockstep/comm/hosts/hosts_backend.h"

namespace lockstep {

// Whether the output is the input as well.
constexpr bool is_in_place(Operation operation) {
  return operation == Operation::all_reduce || operation == Operation::broadcast ||
         operation == Operation::reduce;
}

class HostsBackend::Crossing {
 public:
  // Copies what has to be. `slot` tells apart those that there are at a time. The first three must
  // outlive this, and the collective's counts and memory the call.
  Crossing(HostsBackend& backend, const Call& call, EngineCommunicator& engine,
           const Collective& collective, std::size_t slot = 0);
  ~Crossing();  // Gives up what is under way: EngineCommunicator::give_up().
  Crossing(const Crossing&) = delete;
  Crossing& operator=(const Crossing&) = delete;

  // One is under way at a time, of an engine's communicator.
  void start();

  // Blocking: until it is complete. Errors: as Backend::run().
  void wait();

  // Copies the result to where it belongs.
  void deliver();

 private:
  void keep(Buffer& buffer, std::size_t scratch, bool is_read);

  HostsBackend& backend_;
  const Call& call_;
  EngineCommunicator& engine_;
  Collective collective_;
  const Buffer result_;  // Where it belongs.
  std::shared_ptr<std::vector<std::shared_ptr<const void>>> kept_;
  bool is_under_way_ = false;
};

}  // namespace lockstep
