// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/work.h"

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/base/time.h"
#include "lockstep/comm/group/rank_context.h"
#include "lockstep/comm/work_state.h"
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

// With a timeout, it only watches: running the call here could take longer.
void Work::wait(std::chrono::milliseconds timeout) const {
  State& shared = state();
  const Deadline deadline = timeout == std::chrono::milliseconds::max() ? no_deadline : in(timeout);
  if (!shared.completed)
    deadline == no_deadline ? shared.runner->help(shared) : shared.runner->hurry();
  if (!shared.completed) {
    const StepClock::Lent lent;
    std::unique_lock lock(shared.mutex);
    const auto completed = [&] { return shared.completed.load(); };
    if (deadline == no_deadline)
      shared.done.wait(lock, completed);
    else if (!shared.done.wait_until(lock, deadline, completed))
      throw Error(Fault::timeout, "Work::wait: the operation still runs");
  }
  if (!shared.error) return;
  comm::RankContext::note_failed_call();
  std::rethrow_exception(shared.error);
}

bool Work::is_completed() const { return state().completed; }

void Work::on_completion(std::function<void()> act) const {
  require(act != nullptr, "Work::on_completion: there is nothing to call");
  State& shared = state();
  {
    const std::lock_guard lock(shared.mutex);
    if (!shared.completed) {
      shared.acts.push_back(std::move(act));
      act = nullptr;
    }
  }
  act ? act() : shared.runner->hurry();
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
