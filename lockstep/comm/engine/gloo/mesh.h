// Gloo's connections between all members of a communicator.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gloo/rendezvous/context.h>
#include <gloo/transport/unbound_buffer.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "lockstep/comm/engine/engine_abi.h"

namespace lockstep::comm::engines {

// The thread with which Gloo reads and writes a device's connections.
//
// A sending thread holds the connection's lock while it wakes this thread, which then spins for the
// lock. On a rank with one CPU, it would spin for a whole time slice. With SCHED_BATCH, it preempts
// neither a sender nor a computing thread. A caller that only waits holds no lock, so it lets this
// thread preempt.
class LoopThread {
 public:
  LoopThread() = default;

  // Calls `start`. The thread that `start` creates gets SCHED_BATCH if the calling thread has
  // SCHED_OTHER. If the new thread is not found, Preempting has no effect.
  static LoopThread started_by(const std::function<void()>& start);

  // Lets the thread preempt while this object lives; one at a time.
  class Preempting {
   public:
    explicit Preempting(const LoopThread& thread);
    ~Preempting();
    Preempting(const Preempting&) = delete;
    Preempting& operator=(const Preempting&) = delete;

   private:
    const pid_t id_;
  };

 private:
  pid_t id_ = 0;  // 0 if it lacks SCHED_BATCH or was not found.
};

// All connections use one network address of this host. Thread safety: one thread at a time, except
// abort().
class Mesh final : public gloo::rendezvous::Context {
 public:
  // Blocking: until all members have come, at most the timeout of `config`. Errors: plugin::Failed
  // with the store's error; Gloo's own.
  explicit Mesh(const lockstep_engine_config& config);

  // Ends all connections. A running call then fails, here and on members that wait for this one.
  void abort(const std::string& why);

  // A buffer whose current or next waits fail at abort(), unlike Gloo's own; it must not outlive
  // the Mesh.
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer(void* data, std::size_t bytes);

  std::uint32_t next_tag() { return tag_++; }

  const LoopThread& loop() const { return loop_; }

 private:
  class Buffer;

  LoopThread loop_;
  std::mutex mutex_;  // Guards the next two members.
  std::set<Buffer*> buffers_;
  bool is_aborted_ = false;
  std::uint32_t tag_ = 0;
};

}  // namespace lockstep::comm::engines
