// Aborts groups after a timeout, unless it is destroyed earlier.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/base/thread.h"
#include "lockstep/comm/process_group.h"

namespace lockstep {

class GiveUpLater {
 public:
  // Starts a thread that calls abort(reason) of `groups` after `patience`.
  // Errors: system if no thread can be started.
  GiveUpLater(std::vector<ProcessGroup> groups, std::string reason,
              std::chrono::milliseconds patience);

  // Cancels the timeout.
  ~GiveUpLater();
  GiveUpLater(const GiveUpLater&) = delete;
  GiveUpLater& operator=(const GiveUpLater&) = delete;

 private:
  void wait();

  const std::vector<ProcessGroup> groups_;
  const std::string reason_;
  const std::chrono::milliseconds patience_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  Thread thread_;  // Declared last, because it uses the others.
};

}  // namespace lockstep
