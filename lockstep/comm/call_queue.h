// How a group's collectives take turns: one at a time, in the order in which they were begun.
//
// A blocking one runs on its caller. An asynchronous one is run by whoever waits for it or for a
// later one, and a thread of the queue takes over what nobody waits for (takeover.h), a long call
// at once.
//
// Thread safety: any thread may call any member at any time.

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
  // Waits for the running call, unless that is calling. Those that have not begun fail with
  // Error(aborted).
  ~CallQueue();
  CallQueue(const CallQueue&) = delete;
  CallQueue& operator=(const CallQueue&) = delete;

  // The right to run a call on this thread, until this object goes. Empty without that right.
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

  // Returns the turn if no call is running or waiting.
  Turn try_turn();

  // Blocks until all earlier calls have ended. Runs those that have not begun itself, if they take
  // no longer than `timeout`. Empty if one of them has still to be run at the deadline.
  Turn take_turn(std::chrono::milliseconds timeout, Deadline deadline);
  Turn take_turn() { return take_turn(std::chrono::milliseconds::max(), no_deadline); }

  struct Options {
    std::chrono::milliseconds timeout = default_timeout;  // The call takes no longer.
    bool is_long = false;                                 // Compared with a hand-over.
  };

  // Runs `call` after all earlier ones. The first call of this starts the thread. Errors: system
  // when the thread cannot start.
  Work submit(std::function<void()> call, Options options);

 private:
  const std::shared_ptr<Shared> shared_;  // The thread and the Works may outlive this object.
  std::mutex starting_;
  Thread thread_;
};

}  // namespace lockstep::comm
