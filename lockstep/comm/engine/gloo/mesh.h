// Connections of Gloo's between all members of a communicator, through one address of this host.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gloo/rendezvous/context.h>

#include <cstdint>
#include <memory>
#include <string>

#include "lockstep/comm/engine/engine_abi.h"
#include "lockstep/comm/engine/gloo/loop_thread.h"

namespace lockstep::plugin {

// Thread safety: one thread at a time, but for give_up().
class Mesh final : public gloo::rendezvous::Context {
 public:
  // Blocking: until all members have come, at most the timeout of `config`.
  // Errors: Failed with what the store said; those of Gloo.
  explicit Mesh(const lockstep_engine_config& config);

  // Ends all connections, so that a call that is under way fails, here and on the members that wait
  // for this one.
  void give_up(const std::string& why);

  // Of the next call: those of two calls must not be taken for each other's.
  std::uint32_t next_tag() { return tag_++; }

  const LoopThread& loop() const { return loop_; }

 private:
  LoopThread loop_;
  std::uint32_t tag_ = 0;
};

}  // namespace lockstep::plugin
