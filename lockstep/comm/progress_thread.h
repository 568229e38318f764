// The thread that runs a group's asynchronous operations in order.
//
// Thread safety: any thread may call any member at any time.

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
  // Waits for the running task, unless called by that task. Queued tasks fail with Error(aborted).
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  // Runs `task` after all earlier ones. The first call starts the thread. Errors: system when the
  // thread cannot start.
  Work submit(std::function<void()> task);

  // Whether nothing is queued or running.
  bool is_idle() const;

  // Blocks until it is idle; false at the deadline.
  bool wait_until_idle(Deadline deadline);

 private:
  struct Queue;

  static void loop(const std::shared_ptr<Queue>& queue);

  const std::shared_ptr<Queue> queue_;  // Shared with the thread, which may outlive this object.
  std::mutex starting_;
  Thread thread_;
};

}  // namespace lockstep
