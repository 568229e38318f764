// Groups that are given up unless something is done in time.

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
  // Calls abort(reason) of `groups` after `patience`, from a thread of its own.
  // Errors: system when there can be no thread.
  GiveUpLater(std::vector<ProcessGroup> groups, std::string reason,
              std::chrono::milliseconds patience);

  // It was done in time.
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
  Thread thread_;  // Last, as it uses the others.
};

}  // namespace lockstep
