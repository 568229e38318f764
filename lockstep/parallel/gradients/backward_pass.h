// The current backward pass, until LibTorch or an exception ends it.
//
// Thread safety: none, except that a device's autograd thread may end the pass.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/thread.h"
#include "lockstep/base/time.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/gradients/gradient_memory.h"

namespace c10::ivalue {
struct Future;
}

namespace lockstep::parallel {

// The outcome of one backward(), LibTorch's graph task.
class GraphTaskResult {
 public:
  // Errors: bug if this thread executes no backward().
  static GraphTaskResult of_this_thread();

  GraphTaskResult(const GraphTaskResult&);
  GraphTaskResult& operator=(const GraphTaskResult&) = delete;
  ~GraphTaskResult();

  // Null before the end, after success, and for other types than std::exception.
  std::exception_ptr exception() const;

 private:
  explicit GraphTaskResult(c10::intrusive_ptr<c10::ivalue::Future> future);

  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// Exists as long as LibTorch's graph task.
class BackwardPass {
 public:
  // For the backward() of this thread. Arms `pool`, if any. `at_end` must not throw. It runs on
  // the thread that ends the pass.
  BackwardPass(const std::shared_ptr<GradientPool>& pool,
               std::function<void(const BackwardPass&)> at_end)
      : arming_(pool), result_(GraphTaskResult::of_this_thread()), at_end_(std::move(at_end)) {}
  ~BackwardPass() {
    if (at_end_) at_end_(*this);
  }
  BackwardPass(const BackwardPass&) = delete;
  BackwardPass& operator=(const BackwardPass&) = delete;

  // Describes the change of this rank's module, if the pass reaches no known parameter. Other ranks
  // may then make another call.
  std::string change = {};

  bool has_announced = false;  // Whether Reducer::announce() was called.
  bool has_reported = false;   // Otherwise other ranks wait.

  std::exception_ptr exception() const { return result_.exception(); }
  std::chrono::nanoseconds elapsed() const { return Clock::now() - begin_; }

 private:
  const GradientPool::Arming arming_;
  const GraphTaskResult result_;
  const std::function<void(const BackwardPass&)> at_end_;
  const Clock::time_point begin_ = Clock::now();
};

// A reducer's pass: of one backward() and, if `watched`, of those nested in it.
class PassUnderWay {
 public:
  // Whether `graph_task` belongs to the pass. `watched`: the task has reached an output of
  // forward().
  bool covers(int graph_task, bool watched) const {
    return !pass_.expired() && (graph_task == graph_task_ || (watched_ && !watched));
  }

  void begin(const std::shared_ptr<BackwardPass>& pass, int graph_task, bool watched) {
    pass_ = pass;
    graph_task_ = graph_task;
    watched_ = watched;
  }

  void end() { pass_.reset(); }

 private:
  std::weak_ptr<BackwardPass> pass_;
  int graph_task_ = -1;
  bool watched_ = false;  // It began at an output: nested graph tasks belong to it.
};

// Returns whether other ranks can reach the end of the pass.
using TakePart = std::function<bool(std::string_view text)>;

// After `error` (null: unknown), ends the pass together with the other ranks. `take_part` gets the
// exception's text and joins the collectives for which the others wait. If `take_part` throws,
// `own` is aborted. Both groups are aborted if it returns false, or takes longer than
// max(5 s, 3 * `longest_pass`): the others may wait elsewhere.
// Blocking: until the others have reached the end of the pass.
void end_with_the_others(const std::exception_ptr& error, const ProcessGroup& own,
                         const ProcessGroup& given, std::chrono::nanoseconds longest_pass,
                         const TakePart& take_part) noexcept;

// Aborts groups after `patience`, unless destroyed earlier.
class AbortLater {
 public:
  // Starts a thread. Errors: system if that fails.
  AbortLater(std::vector<ProcessGroup> groups, std::string reason,
             std::chrono::milliseconds patience);

  ~AbortLater();
  AbortLater(const AbortLater&) = delete;
  AbortLater& operator=(const AbortLater&) = delete;

 private:
  void wait();

  const std::vector<ProcessGroup> groups_;
  const std::string reason_;
  const std::chrono::milliseconds patience_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  Thread thread_;  // Last: uses the other members.
};

}  // namespace lockstep::parallel
