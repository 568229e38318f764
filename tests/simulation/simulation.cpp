// SPDX-License-Identifier: Apache-2.0
#include "tests/simulation/simulation.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace lockstep::simulation {

void Simulation::unwind_all() {
  on_end_ = [](Process&) {};
  hook_ = nullptr;
  trace_ = nullptr;
  for (const auto& process : processes_) {
    process->is_alive = false;
    process->was_killed = true;
    unwind(*process);
  }
}

// --- Events --------------------------------------------------------------------------------------

void Simulation::push(Time time, Task* task, std::uint64_t wait, bool wakes,
                      std::function<void()> act) {
  heap_.push_back({std::max(time, now_), pushed_++, task, wait, wakes, std::move(act)});
  std::push_heap(heap_.begin(), heap_.end(), Later());
}

void Simulation::at(Time time, std::function<void()> act) {
  push(time, nullptr, 0, false, std::move(act));
}

void Simulation::run(Time limit) {
  while (!is_over_ && !heap_.empty() && heap_.front().time <= limit) {
    std::pop_heap(heap_.begin(), heap_.end(), Later());
    const Event event = std::move(heap_.back());
    heap_.pop_back();
    now_ = event.time;
    if (event.task == nullptr) {
      ++events_;
      event.act();
    } else {
      dispatch(*event.task, event.wait, event.wakes);
    }
  }
}

void Simulation::dispatch(Task& task, std::uint64_t wait, bool wakes) {
  Process& process = task.process_;
  if (task.wait_ != wait || task.has_ended() || !process.is_alive) return;
  if (now_ < process.stopped_until) {
    process.deferred_.push_back({&task, wait, wakes});
    return;
  }
  ++events_;
  task.is_woken_ = wakes;
  resume(task);
}

// May be nested: a process that dies unwinds its other fibers.
void Simulation::resume(Task& task) {
  ++task.wait_;
  task.has_begun_ = true;
  Task* const before = std::exchange(current_, &task);
  task.fiber_.resume();
  current_ = before;
  if (!task.fiber_.has_ended()) return;
  task.fiber_.release();
  end_task(task);
}

void Simulation::end_task(Task& task) {
  for (Task* const waiting : std::exchange(task.joining_, {})) wake(*waiting);
  Process& process = task.process_;
  if (&task != process.tasks_.front().get() || !process.is_alive) return;
  process.is_alive = false;
  --living_;
  on_end_(process);
}

// --- Processes -----------------------------------------------------------------------------------

Process& Simulation::start_process(Seat seat, int host, std::function<void(Process&)> body) {
  processes_.push_back(
      std::make_unique<Process>(static_cast<int>(processes_.size()), seat, host, seed_));
  Process& process = *processes_.back();
  ++living_;
  wake(process.add_task([&process, body = std::move(body)] { body(process); }));
  return process;
}

void Simulation::unwind(Task& task) {
  if (task.has_ended()) return;
  if (task.has_begun_)
    resume(task);
  else
    task.is_dropped_ = true;
}

// The first fiber last: its objects contain those of the others.
void Simulation::unwind(Process& process) {
  for (std::size_t i = process.tasks_.size(); i-- > 0;) unwind(*process.tasks_[i]);
}

void Simulation::kill(Process& process, bool with_host) {
  if (!process.is_alive) return;
  process.is_alive = false;
  process.was_killed = true;
  process.died_with_host = with_host;
  process.outcome = with_host ? "died with its host" : "was killed";
  --living_;
  trace(fmt::format("{} {}", name_of(process), process.outcome));
  on_end_(process);
  at(now_, [this, &process] { unwind(process); });
  if (current_ != nullptr && &current_->process_ == &process) throw Killed();
}

void Simulation::stop(Process& process, Time until) {
  if (!process.is_alive || process.stopped_until >= until) return;
  process.stopped_until = until;
  trace(fmt::format("{} is stopped for {} ms", name_of(process),
                    std::chrono::duration_cast<std::chrono::milliseconds>(until - now_).count()));
  at(until, [this, &process] {
    if (now_ < process.stopped_until) return;  // It was stopped again.
    for (const auto& [task, wait, wakes] : std::exchange(process.deferred_, {}))
      push(now_, task, wait, wakes, nullptr);
  });
}

// --- Within a fiber ------------------------------------------------------------------------------

void Simulation::point(std::string_view what, std::string_view key) {
  Process& process = current_->process_;
  if (!process.is_alive) throw Killed();
  if (trace_) trace(fmt::format("{} {}{}{}", name_of(process), what, key.empty() ? "" : " ", key));
  if (hook_) hook_(process, what, key);
  if (now_ < process.stopped_until) await(now_);
}

bool Simulation::await(Time deadline) {
  Task& task = *current_;
  if (!task.process_.is_alive) throw Killed();
  task.is_woken_ = false;
  if (deadline != no_deadline) push(deadline, &task, task.wait_, false, nullptr);
  task.fiber_.suspend();
  if (!task.process_.is_alive) throw Killed();
  return task.is_woken_;
}

void Simulation::wake(Task& task) { push(now_, &task, task.wait_, true, nullptr); }

void Simulation::sleep(Duration time) {
  const Time deadline = now_ + time;
  while (now_ < deadline) await(deadline);
}

Task& Simulation::start_task(std::function<void()> body) {
  Task& task = current_->process_.add_task(std::move(body));
  wake(task);
  return task;
}

void Simulation::join(Task& task) {
  if (!task.process_.is_alive) return unwind(task);
  while (!task.has_ended()) {
    task.joining_.push_back(current_);
    try {
      await(no_deadline);
    } catch (const Killed&) {  // Destructors join, and must not throw.
      return unwind(task);
    }
  }
}

}  // namespace lockstep::simulation
