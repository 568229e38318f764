// The thread with which Gloo reads and writes the connections of a device.
//
// It is woken by whoever sends, and spins until the sender has let go of the connection: where a
// rank has one CPU, for all of its time slice, 4 ms a message of 64 KB. So it is of SCHED_BATCH,
// and does not preempt who wakes it. But neither does it preempt a thread that computes then, and
// waits for the end of its slice: some 4 ms, each time. A caller that only waits holds no
// connection, and lets it preempt.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <functional>

namespace lockstep::plugin {

class LoopThread {
 public:
  LoopThread() = default;

  // The one thread that `start` starts. Where that is not to be found, or the calling thread has
  // another policy than SCHED_OTHER, it stays as it was started.
  static LoopThread started_by(const std::function<void()>& start);

  // It preempts while one of these lives: one at a time.
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
  pid_t id_ = 0;  // Of a thread of SCHED_BATCH; 0 when there is none.
};

}  // namespace lockstep::plugin
