// The thread that runs a group's asynchronous operations, one after the other.
//
// Thread safety: every member may be called from any thread at once.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <mutex>

#include "lockstep/base/thread.h"
#include "lockstep/base/time.h"
#include "lockstep/comm/work.h"

namespace lockstep {

class ProgressThread {
 public:
  ProgressThread();
  // Waits for the task that is running, unless that is what ends us; those behind it fail with
  // Error(aborted).
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  // Runs `task` after all that were submitted before it. The thread starts at the first one.
  // Errors: system when it cannot.
  Work submit(std::function<void()> task);

  // Whether nothing is queued or running.
  bool is_idle() const;

  // Blocks until it is so. False when it was not by the deadline.
  bool wait_until_idle(Deadline deadline);

 private:
  struct Queue;

  static void loop(const std::shared_ptr<Queue>& queue);

  const std::shared_ptr<Queue> queue_;  // Shared with the thread, which may outlive us.
  std::mutex starting_;
  Thread thread_;
};

}  // namespace lockstep
