// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/progress_thread.h"

#include <atomic>
#include <condition_variable>
#include <deque>

#include "lockstep/base/error.h"
#include "lockstep/comm/work_state.h"

namespace lockstep {

struct ProgressThread::Queue {
  struct Task {
    std::function<void()> run;
    std::shared_ptr<Work::State> state;
  };

  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Task> tasks;       // The front one is running.
  std::atomic<int> pending{0};  // Number of tasks, readable without the lock.
  bool stopping = false;
};

ProgressThread::ProgressThread() : queue_(std::make_shared<Queue>()) {}

ProgressThread::~ProgressThread() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(queue_->mutex);
    queue_->stopping = true;
    queue_->changed.notify_all();
  }
  // The last handle may have been dropped by a task's keep_alive.
  thread_.is_current() ? thread_.detach() : thread_.join();
}

Work ProgressThread::submit(std::function<void()> task) {
  {
    const std::lock_guard lock(starting_);
    if (!thread_.joinable()) thread_ = start_thread(&ProgressThread::loop, queue_);
  }
  auto state = std::make_shared<Work::State>();
  const std::lock_guard lock(queue_->mutex);
  queue_->tasks.push_back({std::move(task), state});
  queue_->pending.fetch_add(1, std::memory_order_relaxed);
  queue_->changed.notify_all();
  return Work(std::move(state));
}

bool ProgressThread::is_idle() const {
  return queue_->pending.load(std::memory_order_acquire) == 0;
}

bool ProgressThread::wait_until_idle(Deadline deadline) {
  if (is_idle()) return true;
  std::unique_lock lock(queue_->mutex);
  return queue_->changed.wait_until(lock, deadline, [&] { return queue_->tasks.empty(); });
}

void ProgressThread::loop(const std::shared_ptr<Queue>& queue) {
  std::unique_lock lock(queue->mutex);
  while (true) {
    queue->changed.wait(lock, [&] { return queue->stopping || !queue->tasks.empty(); });
    if (queue->tasks.empty()) return;
    Queue::Task& task = queue->tasks.front();  // push_back() moves no other task.
    const bool stopping = queue->stopping;
    lock.unlock();
    std::exception_ptr error;
    try {
      if (stopping) throw Error(Fault::aborted, "the group was given up before this could run");
      task.run();
    } catch (...) {
      error = std::current_exception();
    }
    task.run = nullptr;  // The objects it keeps alive go before the completion is visible.
    task.state->complete(error);
    lock.lock();
    queue->tasks.pop_front();
    queue->pending.fetch_sub(1, std::memory_order_release);
    queue->changed.notify_all();
  }
}

}  // namespace lockstep
