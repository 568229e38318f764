// An engine's communicator, the thread that calls it, and the memory that its calls use.
//
// Engines block, and some never return after a peer is lost. So each communicator has its own
// thread, and the caller waits for it with a deadline. An aborted call is cancelled if the engine
// supports it. Otherwise its thread and the memory of the call are never freed.
//
// Thread safety: each class, one thread at a time.

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
  // Called every 20 ms during a wait for the engine. May throw, which aborts the call.
  using Watch = std::function<void()>;

  // Collective over its members. Blocks until the engine has made it. Errors: the engine's, those
  // of `watch`, timeout.
  EngineCommunicator(CommunicatorOptions options, const Watch& watch);
  ~EngineCommunicator();
  EngineCommunicator(const EngineCommunicator&) = delete;
  EngineCommunicator& operator=(const EngineCommunicator&) = delete;

  int rank() const;

  // Marks the group as failed: the destructor then hardly waits for the engine, which may wait for
  // lost peers.
  void expect_no_peers();

  // Whether the engine stops using a call's memory before wait() throws. If false, `keep_alive`
  // must keep the buffers alive.
  bool can_cancel() const;

  // Starts `collective`. Composes it of other collectives if the engine lacks it or is slower.
  // Counts are those of the members, as in Backend::run(). Call no other member before wait() or
  // abort() has returned.
  void start(const Collective& collective, std::shared_ptr<const void> keep_alive);

  // Blocks until the started call is complete. Errors: as the constructor; only the destructor may
  // follow.
  void wait(Deadline deadline, const Watch& watch);

  // Aborts the call instead of wait(), for a caller that has failed meanwhile. Does nothing without
  // a running call. Blocking: until an engine that can cancel no longer uses the call's memory.
  void abort() noexcept;

 private:
  class Caller;

  const std::shared_ptr<Caller> caller_;
};

// Keeps memory alive that an engine may still use after its caller has aborted.
class KeptMemory {
 public:
  // Registers `memory` for owner_of() and returns it.
  RegisteredMemory add(RegisteredMemory memory);

  // Returns memory of the group for a buffer like `shape`; `which` numbers those in use at a time.
  // It stays until a larger one is needed, or until the last call with it ends.
  Buffer scratch(std::size_t which, const Buffer& shape);

  // Returns a handle that keeps all of `buffer` valid; null for unknown memory and for an empty
  // buffer.
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
