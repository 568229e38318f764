// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/takeover.h"

#include <utility>

namespace lockstep::comm {

void Takeover::hurry() {
  due_ = {};
  is_asleep_ = false;
  wake_.notify_one();
}

void Takeover::rouse() {
  if (std::exchange(is_asleep_, false)) wake_.notify_one();
}

void Takeover::sleep(std::unique_lock<std::mutex>& lock, bool has_work) {
  const bool is_quiet = std::exchange(seen_, calls_) == calls_;
  if (has_work) {
    wake_.wait_until(lock, due_);
  } else if (!is_quiet) {
    wake_.wait_for(lock, patience);
  } else {
    is_asleep_ = true;
    wake_.wait(lock, [this] { return !is_asleep_; });
  }
}

}  // namespace lockstep::comm
