// A communicator of an engine, such as Gloo or MPI, with its calling thread and its calls' memory.
//
// If the engine does not return from an aborted call, its thread and memory are not freed
// (docs/internals/hosts.md).
//
// Thread safety: one thread at a time.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include "lockstep/base/time.h"
#include "lockstep/comm/core/backend.h"
#include "lockstep/comm/core/buffer.h"
#include "lockstep/comm/engine/plugin_communicator.h"

namespace lockstep::comm {

class EngineCommunicator {
 public:
  // Called every 20 ms while a thread waits for the engine. May throw, which aborts the call.
  using Watch = std::function<void()>;

  // Collective over its members. Blocking: until the engine has made it. Errors: the engine's,
  // those of `watch`, timeout.
  EngineCommunicator(CommunicatorOptions options, const Watch& watch);
  ~EngineCommunicator();
  EngineCommunicator(const EngineCommunicator&) = delete;
  EngineCommunicator& operator=(const EngineCommunicator&) = delete;

  int rank() const;

  // The destructor then waits at most 0.3 s, not 10 s, for the engine: peers may be lost.
  void expect_no_peers();

  // If false, the engine may use a call's memory after wait() has thrown: `keep_alive` must keep
  // the buffers alive.
  bool can_cancel() const;

  // Composes a collective that the engine lacks or does slowly. Counts are as in Backend::run().
  // Call no other member before wait() or abort() has returned.
  void start(const Collective& collective, std::shared_ptr<const void> keep_alive);

  // Blocks until the call is complete. Errors: as the constructor; then call only the destructor.
  void wait(Deadline deadline, const Watch& watch);

  // Replaces wait() for a caller that has failed; does nothing without a running call. Blocking:
  // until an engine that can cancel no longer uses the call's memory, at most 3 s.
  void abort() noexcept;

 private:
  class Caller;

  const std::shared_ptr<Caller> caller_;
};

// Memory that an engine may use after its caller has aborted.
class KeptMemory {
 public:
  // Registers `memory` for owner_of().
  RegisteredMemory add(RegisteredMemory memory);

  // Uninitialised memory for a buffer like `shape`, valid until a call with the same `which` and a
  // larger shape; owner_of() keeps it longer. `which` numbers the buffers in use at a time.
  Buffer scratch(std::size_t which, const Buffer& shape);

  // Keeps all of `buffer` valid; null for unknown memory and an empty buffer.
  std::shared_ptr<const void> owner_of(const Buffer& buffer) const;

 private:
  struct Known {
    std::weak_ptr<RegisteredMemory> memory;
    const std::byte* data;
    std::size_t bytes;
  };
  struct Scratch {
    std::shared_ptr<std::byte[]> data;
    std::size_t bytes = 0;
  };

  std::vector<Known> known_;
  std::vector<Scratch> scratch_;
};

}  // namespace lockstep::comm
