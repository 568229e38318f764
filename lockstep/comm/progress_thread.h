// The thread that runs a group's asynchronous operations, one after the other.
//
// Thread safety: every member may be called from any thread at once.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "lockstep/comm/work.h"

namespace lockstep {

class ProgressThread {
 public:
  ProgressThread() : pid_(::getpid()) {}
  // Waits for the task that is running; those behind it fail with Error(aborted).
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  // Runs `task` after all that were submitted before it. The thread starts at the first one.
  Work submit(std::function<void()> task);

  // Blocks until nothing is queued or running.
  void wait_until_idle();

 private:
  struct Task {
    std::function<void()> run;
    std::shared_ptr<Work::State> state;
  };

  void loop();

  const pid_t pid_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Task> tasks_;       // The front one is running.
  std::atomic<int> pending_{0};  // How many those are, for a look without the lock.
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace lockstep
