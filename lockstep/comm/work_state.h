// The shared state of a Work's copies, made by the code that runs the operation.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>

#include "lockstep/base/processes.h"
#include "lockstep/comm/core/message.h"
#include "lockstep/comm/work.h"

namespace lockstep {

struct Work::State {
  const pid_t pid = this_process();  // Process whose thread runs the operation.
  std::mutex mutex;
  std::condition_variable done;
  bool completed = false;
  Source source;
  std::exception_ptr error;

  void complete(std::exception_ptr failure) {
    const std::lock_guard lock(mutex);
    error = std::move(failure);
    completed = true;
    done.notify_all();
  }
};

}  // namespace lockstep
