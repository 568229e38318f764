// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/work.h"

#include "lockstep/comm/error.h"
#include "lockstep/comm/work_state.h"

namespace lockstep {

Work::Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

void Work::wait(Deadline deadline) const {
  std::unique_lock lock(state_->mutex);
  const auto completed = [&] { return state_->completed; };
  if (deadline == no_deadline) {
    state_->done.wait(lock, completed);
  } else if (!state_->done.wait_until(lock, deadline, completed)) {
    throw Error(Fault::timeout, "Work::wait: the operation is still under way");
  }
  if (state_->error) std::rethrow_exception(state_->error);
}

bool Work::completed() const {
  const std::lock_guard lock(state_->mutex);
  return state_->completed;
}

std::exception_ptr Work::error() const {
  const std::lock_guard lock(state_->mutex);
  return state_->error;
}

int Work::source_rank() const {
  const std::lock_guard lock(state_->mutex);
  return state_->source_rank;
}

}  // namespace lockstep
