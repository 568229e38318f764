// Runs a group's collectives one at a time, in the order of their start.
//
// A waiting thread runs its own call and those before. Otherwise the queue's thread takes over:
// docs/internals/communication.md (Order of calls).
//
// Thread safety: any thread.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>

#include "lockstep/base/thread.h"
#include "lockstep/base/time.h"
#include "lockstep/comm/work.h"

namespace lockstep::comm {

class CallQueue {
 private:
  class Shared;

 public:
  CallQueue();
  // Waits for the running call, unless called by it. Calls not started fail with Error(aborted).
  ~CallQueue();
  CallQueue(const CallQueue&) = delete;
  CallQueue& operator=(const CallQueue&) = delete;

  // The right to run a call on this thread, or empty.
  class Turn {
   public:
    Turn() = default;
    explicit operator bool() const { return shared_ != nullptr; }

   private:
    friend class CallQueue;
    struct End {
      void operator()(Shared* shared) const;
    };
    explicit Turn(Shared* shared) : shared_(shared) {}

    std::unique_ptr<Shared, End> shared_;
  };

  // Empty if a call is running or waiting.
  Turn try_turn();

  // Blocks until all earlier calls have ended; runs those not started whose limit is at most
  // `timeout`. Empty after the deadline.
  Turn take_turn(std::chrono::milliseconds timeout, Deadline deadline);
  Turn take_turn() { return take_turn(std::chrono::milliseconds::max(), no_deadline); }

  struct Options {
    std::chrono::milliseconds timeout = default_timeout;
    bool is_long = false;  // Compared with a hand-over.
  };

  // Runs `call` after all earlier ones. Errors: system when the queue's thread cannot start.
  Work submit(std::function<void()> call, Options options);

 private:
  const std::shared_ptr<Shared> shared_;  // The thread and Works may outlive this object.
  std::mutex starting_;
  Thread thread_;
};

}  // namespace lockstep::comm
