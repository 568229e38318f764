// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/work.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/comm/progress.h"
#include "lockstep/job/step_clock.h"

namespace lockstep {

Work::Work(std::shared_ptr<State> state) : state_(std::move(state)) {}

Work::State& Work::state() const {
  require(state_ != nullptr, "this Work belongs to no operation");
  require(state_->pid == this_process(), [&] {
    return fmt::format("this Work belongs to process {}; process {} was fork()ed and cannot use it",
                       state_->pid, this_process());
  });
  return *state_;
}

void Work::wait(Deadline deadline) const {
  State& shared = state();
  const StepClock::Lent lent;
  std::unique_lock lock(shared.mutex);
  const auto completed = [&] { return shared.completed; };
  if (deadline == no_deadline) {
    shared.done.wait(lock, completed);
  } else if (!shared.done.wait_until(lock, deadline, completed)) {
    throw Error(Fault::timeout, "Work::wait: the operation still runs");
  }
  if (shared.error) std::rethrow_exception(shared.error);
}

bool Work::completed() const {
  State& shared = state();
  const std::lock_guard lock(shared.mutex);
  return shared.completed;
}

std::exception_ptr Work::error() const {
  State& shared = state();
  const std::lock_guard lock(shared.mutex);
  return shared.error;
}

Source Work::source() const {
  State& shared = state();
  const std::lock_guard lock(shared.mutex);
  return shared.source;
}

}  // namespace lockstep
