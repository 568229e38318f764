// The state that a Work's copies share.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "lockstep/base/processes.h"
#include "lockstep/comm/work.h"

namespace lockstep {

namespace comm {

// Runs a group's operations of one kind. Thread safety: any thread.
class Runner {
 public:
  virtual ~Runner() = default;

  // Runs on this thread what `work` needs. Returns when `work` is complete or another thread runs
  // it.
  virtual void help(const Work::State& work) = 0;

  // No thread helps: a background thread should start now.
  virtual void hurry() = 0;
};

}  // namespace comm

struct Work::State {
  explicit State(std::shared_ptr<comm::Runner> runs) : runner(std::move(runs)) {}

  const pid_t pid = this_process();  // Its threads run the operation.
  const std::shared_ptr<comm::Runner> runner;
  bool begun = false;  // Used only by the runner.

  std::mutex mutex;
  std::condition_variable done;
  std::atomic<bool> completed{false};  // Once set, the next two do not change.
  Source source;
  std::exception_ptr error;
  std::vector<std::function<void()>> acts;  // on_completion()

  // Returns the acts that the caller must call.
  [[nodiscard]] std::vector<std::function<void()>> finish(std::exception_ptr failure) {
    const std::lock_guard lock(mutex);
    error = std::move(failure);
    completed = true;
    done.notify_all();
    return std::exchange(acts, {});
  }
};

}  // namespace lockstep
