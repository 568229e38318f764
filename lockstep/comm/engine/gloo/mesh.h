// Gloo's connections between all members of a communicator, through one address of this host.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gloo/rendezvous/context.h>
#include <gloo/transport/unbound_buffer.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "lockstep/comm/engine/engine_abi.h"
#include "lockstep/comm/engine/gloo/loop_thread.h"

namespace lockstep::plugin {

// Thread safety: one thread at a time, except give_up().
class Mesh final : public gloo::rendezvous::Context {
 public:
  // Blocking: until all members have come, at most the timeout of `config`.
  // Errors: Failed with the store's error; Gloo's own.
  explicit Mesh(const lockstep_engine_config& config);

  // Ends all connections. A running call fails then, here and on members that wait for this one.
  void give_up(const std::string& why);

  // Returns a buffer whose waits fail after give_up(); it must not outlive the Mesh. In Gloo's own
  // buffers, only waits for messages that have not begun to move would end. Others would never end.
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer(void* data, std::size_t bytes);

  // Returns the tag of the next call, so that two calls cannot mix their messages.
  std::uint32_t next_tag() { return tag_++; }

  const LoopThread& loop() const { return loop_; }

 private:
  class Buffer;

  LoopThread loop_;
  std::mutex mutex_;  // Guards the next two members.
  std::set<Buffer*> buffers_;
  bool has_given_up_ = false;
  std::uint32_t tag_ = 0;
};

}  // namespace lockstep::plugin
