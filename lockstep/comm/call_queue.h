// Runs a group's collectives one at a time, in the order in which they were started.
//
// A blocking call runs on its caller's thread. An asynchronous call runs on the thread that first
// waits for it or for a later call. The queue's thread takes over calls for which no thread waits
// (takeover.h), and long calls immediately.
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
  // Waits for the running call, unless that call runs the destructor. Calls that have not started
  // fail with Error(aborted).
  ~CallQueue();
  CallQueue(const CallQueue&) = delete;
  CallQueue& operator=(const CallQueue&) = delete;

  // The right to run a call on this thread, until this object is destroyed. May be empty.
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

  // Returns the right if no call is running or waiting; otherwise empty.
  Turn try_turn();

  // Blocks until all earlier calls have ended. Runs those that have not started, if their time
  // limit is at most `timeout`. Empty if one of them still has to run at the deadline.
  Turn take_turn(std::chrono::milliseconds timeout, Deadline deadline);
  Turn take_turn() { return take_turn(std::chrono::milliseconds::max(), no_deadline); }

  struct Options {
    std::chrono::milliseconds timeout = default_timeout;  // Upper limit of the call's time.
    bool is_long = false;                                 // Compared with a hand-over.
  };

  // Runs `call` after all earlier ones. The first submit() starts the thread. Errors: system when
  // the thread cannot start.
  Work submit(std::function<void()> call, Options options);

 private:
  const std::shared_ptr<Shared> shared_;  // The thread and the Works may outlive this object.
  std::mutex starting_;
  Thread thread_;
};

}  // namespace lockstep::comm
