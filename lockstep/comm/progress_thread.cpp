// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/progress_thread.h"

#include "lockstep/comm/error.h"
#include "lockstep/comm/work_state.h"

namespace lockstep {

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
  pending_.fetch_add(1, std::memory_order_relaxed);
  if (!thread_.joinable()) thread_ = std::thread(&ProgressThread::loop, this);
  changed_.notify_all();
  return Work(std::move(state));
}

void ProgressThread::wait_until_idle() {
  if (pending_.load(std::memory_order_acquire) == 0) return;
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
    pending_.fetch_sub(1, std::memory_order_release);
    changed_.notify_all();
  }
}

}  // namespace lockstep
