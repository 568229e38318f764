// The thread that runs a group's asynchronous operations, one after the other.
//
// Thread safety: every member may be called from any thread at once.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <mutex>
#include <thread>

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

  // Blocks until nothing is queued or running.
  void wait_until_idle();

 private:
  struct Queue;

  static void loop(const std::shared_ptr<Queue>& queue);

  const pid_t pid_;
  const std::shared_ptr<Queue> queue_;  // Shared with the thread, which may outlive us.
  std::mutex starting_;
  std::thread thread_;
};

}  // namespace lockstep
