// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/progress_thread.h"

#include "lockstep/comm/error.h"

namespace lockstep {

struct Work::State {
  std::mutex mutex;
  std::condition_variable done;
  bool completed = false;
  std::exception_ptr error;

  void complete(std::exception_ptr failure) {
    const std::lock_guard lock(mutex);
    error = std::move(failure);
    completed = true;
    done.notify_all();
  }
};

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

ProgressThread::~ProgressThread() {
  if (::getpid() != pid_) {  // fork() copied us without our thread.
    if (thread_.joinable()) thread_.detach();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

Work ProgressThread::submit(std::function<void()> task) {
  auto state = std::make_shared<Work::State>();
  const std::lock_guard lock(mutex_);
  tasks_.push_back({std::move(task), state});
  if (!thread_.joinable()) thread_ = std::thread(&ProgressThread::loop, this);
  changed_.notify_all();
  return Work(std::move(state));
}

void ProgressThread::wait_until_idle() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return tasks_.empty(); });
}

void ProgressThread::loop() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    Task& task = tasks_.front();  // submit() only adds at the back, which moves no other task.
    const bool stopping = stopping_;
    lock.unlock();
    std::exception_ptr error;
    try {
      if (stopping) throw Error(Fault::aborted, "the group was given up before this could run");
      task.run();
    } catch (...) {
      error = std::current_exception();
    }
    task.run = nullptr;  // What it kept alive goes before anybody learns that it is complete.
    task.state->complete(error);
    lock.lock();
    tasks_.pop_front();
    changed_.notify_all();
  }
}

}  // namespace lockstep
