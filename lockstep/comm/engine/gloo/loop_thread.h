// The thread with which Gloo reads and writes the connections of a device.
//
// A sender wakes this thread, which then spins until the sender releases the connection. On a rank
// with one CPU it would spin for its whole time slice: 4 ms per message of 64 KB. So it has the
// policy SCHED_BATCH, and does not preempt the thread that wakes it.
//
// But then it does not preempt a computing thread either, and waits for the end of that slice:
// about 4 ms each time. A caller that only waits holds no connection, so it lets this thread
// preempt.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <functional>

namespace lockstep::plugin {

class LoopThread {
 public:
  LoopThread() = default;

  // Finds the one thread that `start` starts. The thread keeps its policy if it is not found, or if
  // the calling thread's policy is not SCHED_OTHER.
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
  pid_t id_ = 0;  // A thread with SCHED_BATCH; 0 without one.
};

}  // namespace lockstep::plugin
