// Connections of Gloo's between all members of a communicator, through one address of this host.

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

// Thread safety: one thread at a time, but for give_up().
class Mesh final : public gloo::rendezvous::Context {
 public:
  // Blocking: until all members have come, at most the timeout of `config`.
  // Errors: Failed with what the store said; those of Gloo.
  explicit Mesh(const lockstep_engine_config& config);

  // Ends all connections, so that a call that is under way fails, here and on the members that wait
  // for this one.
  void give_up(const std::string& why);

  // A buffer whose waits fail after give_up(). Gloo ends those of its own whose messages have not
  // begun to come or to leave; the others would wait for ever. It must not outlive this.
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer(void* data, std::size_t bytes);

  // Of the next call: those of two calls must not be taken for each other's.
  std::uint32_t next_tag() { return tag_++; }

  const LoopThread& loop() const { return loop_; }

 private:
  class Buffer;

  LoopThread loop_;
  std::mutex mutex_;  // Guards the next two.
  std::set<Buffer*> buffers_;
  bool has_given_up_ = false;
  std::uint32_t tag_ = 0;
};

}  // namespace lockstep::plugin
