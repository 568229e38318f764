// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/progress.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::comm {

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
      if (stopping) throw Error(Fault::aborted, "the group was given up before this operation ran");
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

namespace {

bool is_complete(const Message& message) {
  return message.complete.load(std::memory_order_acquire);
}

std::exception_ptr timed_out(const std::string& what, const Message& message) {
  std::vector<int> absent;
  if (message.peer >= 0) absent.push_back(message.peer);  // With any_source it may be any rank.
  return std::make_exception_ptr(
      Error(Fault::timeout, what + ": the other side did not come in time", std::move(absent)));
}

}  // namespace

struct PointToPoint::Shared {
  struct Started {
    std::shared_ptr<Message> message;
    std::string what;
    Deadline deadline;
    Done done;
    std::shared_ptr<Work::State> work;
  };

  explicit Shared(std::shared_ptr<Backend> messages) : backend(std::move(messages)) {}

  void post(std::shared_ptr<Message> message);
  void progress();
  void end(std::exception_ptr error);
  std::vector<Started> take_ended(std::exception_ptr& failure);
  static void complete(Started& started, std::exception_ptr error);

  const std::shared_ptr<Backend> backend;
  std::mutex moving;        // Guards the backend's messages, which one thread moves at a time, and
                            // `over`.
  std::exception_ptr over;  // Set when messages no longer move; the reason.

  std::mutex mutex;  // Guards the members below. Never held while user code runs.
  std::condition_variable changed;
  std::vector<Started> started;
  bool stopping = false;
};

void PointToPoint::Shared::post(std::shared_ptr<Message> message) {
  const std::lock_guard lock(moving);
  if (over) std::rethrow_exception(over);
  backend->post(std::move(message));
}

void PointToPoint::Shared::progress() {
  const std::lock_guard lock(moving);
  if (over) std::rethrow_exception(over);
  backend->progress();
}

void PointToPoint::Shared::end(std::exception_ptr error) {
  const std::lock_guard lock(moving);
  if (over) return;
  over = std::move(error);
  backend->drop_messages();
}

PointToPoint::PointToPoint(std::shared_ptr<Backend> backend)
    : shared_(std::make_shared<Shared>(std::move(backend))) {}

PointToPoint::~PointToPoint() {
  end(std::make_exception_ptr(
      Error(Fault::aborted, "the group was given up before this message was complete")));
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->stopping = true;
    shared_->changed.notify_all();
  }
  // The last handle may have been dropped by a message's keep_alive.
  thread_.is_current() ? thread_.detach() : thread_.join();
}

void PointToPoint::end(std::exception_ptr error) { shared_->end(std::move(error)); }

std::size_t PointToPoint::pending() const {
  const std::lock_guard lock(shared_->moving);
  return shared_->backend->messages_pending();
}

void PointToPoint::run(const std::shared_ptr<Message>& message,
                       const std::function<std::string()>& describe, Deadline deadline) {
  const auto shared = shared_;  // Another thread of the user may end the group meanwhile.
  try {
    shared->post(message);
    while (true) {
      const std::uint32_t seen = shared->backend->message_bell();
      shared->progress();
      if (is_complete(*message)) break;
      if (Clock::now() >= deadline) std::rethrow_exception(timed_out(describe(), *message));
      shared->backend->await_messages(seen);
    }
    if (message->error) std::rethrow_exception(message->error);
  } catch (...) {
    shared->end(std::current_exception());
    throw;
  }
}

Work PointToPoint::start(std::shared_ptr<Message> message, std::string what, Deadline deadline,
                         Done done) {
  {
    const std::lock_guard lock(starting_);
    if (!thread_.joinable()) thread_ = start_thread(&PointToPoint::loop, shared_);
  }
  auto work = std::make_shared<Work::State>();
  try {
    shared_->post(message);
  } catch (...) {
    shared_->end(std::current_exception());
    throw;
  }
  const std::lock_guard lock(shared_->mutex);
  shared_->started.push_back(
      {std::move(message), std::move(what), deadline, std::move(done), work});
  shared_->changed.notify_all();
  return Work(std::move(work));
}

void PointToPoint::Shared::complete(Started& one, std::exception_ptr error) {
  one.done(error);
  one.done = nullptr;  // The objects it keeps alive go before the end is visible.
  if (one.message->operation == Operation::recv && !error)
    one.work->source = {one.message->peer, one.message->tag};
  one.work->complete(error);
}

// Returns the messages that are complete. When one has failed or was too late, or the group is
// over, returns all of them; `failure` then has the reason.
std::vector<PointToPoint::Shared::Started> PointToPoint::Shared::take_ended(
    std::exception_ptr& failure) {
  const std::lock_guard lock(mutex);
  const auto now = Clock::now();
  for (const Started& one : started) {
    if (failure) break;
    if (is_complete(*one.message))
      failure = one.message->error;
    else if (now >= one.deadline)
      failure = timed_out(one.what, *one.message);
  }
  const auto goes_on = std::stable_partition(started.begin(), started.end(), [&](const auto& one) {
    return !failure && !is_complete(*one.message);
  });
  std::vector<Started> ended(std::make_move_iterator(goes_on),
                             std::make_move_iterator(started.end()));
  started.erase(goes_on, started.end());
  return ended;
}

void PointToPoint::loop(const std::shared_ptr<Shared>& shared) {
  while (true) {
    {
      std::unique_lock lock(shared->mutex);
      shared->changed.wait(lock, [&] { return shared->stopping || !shared->started.empty(); });
      if (shared->started.empty()) return;
    }
    const std::uint32_t seen = shared->backend->message_bell();
    std::exception_ptr failure;
    try {
      shared->progress();
    } catch (...) {
      failure = std::current_exception();
    }
    auto ended = shared->take_ended(failure);
    if (failure) shared->end(failure);
    for (auto& one : ended) {
      const bool went_through = is_complete(*one.message) && !one.message->error;
      Shared::complete(one, went_through ? nullptr : failure);
    }
    if (!ended.empty()) continue;
    try {
      shared->backend->await_messages(seen);
    } catch (...) {
      shared->end(std::current_exception());
    }
  }
}

}  // namespace lockstep::comm
