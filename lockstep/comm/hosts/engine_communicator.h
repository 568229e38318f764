// An engine's communicator, and the thread that calls it.
//
// Engines block, some of them for ever when a peer is gone; so each communicator has a thread of
// its own, for which the caller waits with a deadline. A call that is given up is cancelled where
// the engine can do that; where it cannot, its thread and the memory that it works on are never
// taken back.
//
// Thread safety: one thread at a time.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>

#include "lockstep/base/time.h"
#include "lockstep/comm/core/backend.h"
#include "lockstep/comm/engine/make_communicator.h"

namespace lockstep {

class EngineCommunicator {
 public:
  // Called every 20 ms while the engine is waited for; may throw, which gives the call up.
  using Watch = std::function<void()>;

  // Collective over its members. Blocks until the engine has made it. Errors: the engine's, or
  // `watch`'s; timeout.
  EngineCommunicator(CommunicatorOptions options, const Watch& watch);
  ~EngineCommunicator();
  EngineCommunicator(const EngineCommunicator&) = delete;
  EngineCommunicator& operator=(const EngineCommunicator&) = delete;

  int rank() const;

  // The group has failed: the destructor hardly waits for the engine, which may wait for those who
  // are gone.
  void expect_no_peers();

  // Whether nothing touches a call's memory any more once wait() has thrown. Where it is not so,
  // buffers must be kept alive by `keep_alive`.
  bool can_cancel() const;

  // Starts `collective`, composed of others where the engine does not do it, or does it worse.
  // Counts are of the members, as in Backend::run(). Nothing else is called before wait() has
  // returned, or give_up().
  void start(const Collective& collective, std::shared_ptr<const void> keep_alive);

  // Blocks until what was started is complete. Errors: as the constructor's; after any of them
  // nothing but the destructor is called.
  void wait(Deadline deadline, const Watch& watch);

  // Instead of wait(), by a caller that has failed meanwhile. Nothing when nothing is under way.
  // Blocking: until an engine that can cancel has let go of the call's memory.
  void give_up() noexcept;

 private:
  class Caller;

  const std::shared_ptr<Caller> caller_;
};

}  // namespace lockstep
