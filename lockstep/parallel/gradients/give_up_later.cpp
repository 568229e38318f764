// SPDX-License-Identifier: Apache-2.0
#include "lockstep/parallel/gradients/give_up_later.h"

#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {

GiveUpLater::GiveUpLater(std::vector<ProcessGroup> groups, std::string reason,
                         std::chrono::milliseconds patience)
    : groups_(std::move(groups)),
      reason_(std::move(reason)),
      patience_(patience),
      thread_(start_thread(&GiveUpLater::wait, this)) {}

GiveUpLater::~GiveUpLater() {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void GiveUpLater::wait() {
  std::unique_lock lock(mutex_);
  if (changed_.wait_for(lock, patience_, [this] { return done_; })) return;
  for (const ProcessGroup& group : groups_) group.abort(reason_);
}

}  // namespace lockstep
