// How a group's calls take turns, and the threads that progress its asynchronous operations.
//
// Thread safety: any thread may call any member at any time.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "lockstep/base/processes.h"
#include "lockstep/base/thread.h"
#include "lockstep/base/time.h"
#include "lockstep/comm/core/backend.h"
#include "lockstep/comm/work.h"

namespace lockstep {

// The shared state of a Work's copies, made by the code that runs the operation.
struct Work::State {
  const pid_t pid = this_process();  // Process whose thread runs the operation.
  std::mutex mutex;
  std::condition_variable done;
  bool completed = false;
  Source source;
  std::exception_ptr error;

  void complete(std::exception_ptr failure) {
    const std::lock_guard lock(mutex);
    error = std::move(failure);
    completed = true;
    done.notify_all();
  }
};

namespace comm {

// A mutex with a deadline. std::timed_mutex is one too, but ThreadSanitizer of gcc 12 does not see
// its lock (pthread_mutex_clocklock).
class Turn {
 public:
  bool try_lock() { return !taken_.exchange(true); }
  void lock() { try_lock_until(no_deadline); }  // Blocks without a limit.

  // Blocks until the mutex is free; false at the deadline.
  bool try_lock_until(Deadline deadline) {
    if (try_lock()) return true;
    std::unique_lock lock(mutex_);
    waiting_.fetch_add(1);
    const bool came = freed_.wait_until(lock, deadline, [this] { return try_lock(); });
    waiting_.fetch_sub(1);
    return came;
  }

  void unlock() {
    taken_.store(false);
    // Must come after the store; otherwise a waiter could be missed.
    if (waiting_.load() == 0) return;
    const std::lock_guard lock(mutex_);
    freed_.notify_one();
  }

 private:
  std::atomic<bool> taken_{false};
  std::atomic<int> waiting_{0};
  std::mutex mutex_;
  std::condition_variable freed_;
};

// The thread that runs a group's asynchronous collectives in order.
class ProgressThread {
 public:
  ProgressThread();
  // Waits for the running task, unless called by that task. Queued tasks fail with Error(aborted).
  ~ProgressThread();
  ProgressThread(const ProgressThread&) = delete;
  ProgressThread& operator=(const ProgressThread&) = delete;

  // Runs `task` after all earlier ones. The first call starts the thread. Errors: system when the
  // thread cannot start.
  Work submit(std::function<void()> task);

  // Whether nothing is queued or running.
  bool is_idle() const;

  // Blocks until it is idle; false at the deadline.
  bool wait_until_idle(Deadline deadline);

 private:
  struct Queue;

  static void loop(const std::shared_ptr<Queue>& queue);

  const std::shared_ptr<Queue> queue_;  // Shared with the thread, which may outlive this object.
  std::mutex starting_;
  Thread thread_;
};

// Drives a group's messages. A thread that waits for one message advances all of them. A background
// thread does so while there are asynchronous ones.
//
// The first Error ends it. Every unfinished message is dropped, so that its buffer is not touched
// again, and fails with that Error. Later messages fail with it too.
class PointToPoint {
 public:
  // Receives the Error of a message once, null for success; must not throw.
  using Done = std::function<void(std::exception_ptr)>;

  explicit PointToPoint(std::shared_ptr<Backend> backend);
  // As end(), with aborted.
  ~PointToPoint();
  PointToPoint(const PointToPoint&) = delete;
  PointToPoint& operator=(const PointToPoint&) = delete;

  // Blocks until `message` is complete. Errors: its own; timeout, which contains the text from
  // `describe`.
  void run(const std::shared_ptr<Message>& message, const std::function<std::string()>& describe,
           Deadline deadline);

  // run() in the background; `what` is its description. Calls `done` at the end and then drops it.
  Work start(std::shared_ptr<Message> message, std::string what, Deadline deadline, Done done);

  // Returns the number of messages to or from this rank that were sent but not received.
  std::size_t pending() const;

  // Makes every later message fail with `error`, or with the first error if there was one.
  void end(std::exception_ptr error);

 private:
  struct Shared;

  static void loop(const std::shared_ptr<Shared>& shared);

  const std::shared_ptr<Shared> shared_;  // Shared with the thread, which may outlive this object.
  std::mutex starting_;
  Thread thread_;
};

}  // namespace comm
}  // namespace lockstep
