// The current backward pass, from its first gradient to its end: by LibTorch, or by an exception
// that is forwarded to other ranks.
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

// The outcome of one backward(), for code that observes LibTorch's graph task.
class GraphTaskResult {
 public:
  // The backward() that this thread is executing. Errors: bug if there is none.
  static GraphTaskResult of_this_thread();

  GraphTaskResult(const GraphTaskResult&);
  GraphTaskResult& operator=(const GraphTaskResult&) = delete;
  ~GraphTaskResult();

  // Null before the end, after success, and for an exception not derived from std::exception.
  std::exception_ptr exception() const;

 private:
  explicit GraphTaskResult(c10::intrusive_ptr<c10::ivalue::Future> future);

  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// Exists as long as LibTorch's graph task: until the pass is complete or an exception ends it.
class BackwardPass {
 public:
  // For the backward() that this thread executes. `pool`, if any, is armed. `at_end`, if any, must
  // not throw. It runs on the thread that ends the pass; on a device this is autograd's.
  BackwardPass(const std::shared_ptr<GradientPool>& pool,
               std::function<void(const BackwardPass&)> at_end)
      : arming_(pool), result_(GraphTaskResult::of_this_thread()), at_end_(std::move(at_end)) {}
  ~BackwardPass() {
    if (at_end_) at_end_(*this);
  }
  BackwardPass(const BackwardPass&) = delete;
  BackwardPass& operator=(const BackwardPass&) = delete;

  // The change of this rank's module, if the pass reaches none of the known parameters here. Ranks
  // without the change may then make no such pass, and make another call.
  std::string change = {};

  bool has_announced = false;  // To ranks that have joined.
  bool has_reported = false;  // Otherwise the exception is reported to the other ranks, which wait.

  std::exception_ptr exception() const { return result_.exception(); }
  std::chrono::nanoseconds elapsed() const { return Clock::now() - begin_; }

 private:
  const GradientPool::Arming arming_;
  const GraphTaskResult result_;
  const std::function<void(const BackwardPass&)> at_end_;
  const Clock::time_point begin_ = Clock::now();
};

// The graph tasks of the pass: one for each backward(), including nested ones.
class PassUnderWay {
 public:
  // Whether `graph_task` belongs to the pass. `watched`: it has reached an output of forward().
  bool covers(int graph_task, bool watched) const {
    return !pass_.expired() && (graph_task == graph_task_ || (watched_ && !watched));
  }

  void begin(const std::shared_ptr<BackwardPass>& pass, int graph_task, bool watched) {
    pass_ = pass;
    graph_task_ = graph_task;
    watched_ = watched;
  }

  // The next gradient begins another pass.
  void end() { pass_.reset(); }

 private:
  std::weak_ptr<BackwardPass> pass_;
  int graph_task_ = -1;
  bool watched_ = false;  // It began at an output, so nested graph tasks belong to it.
};

// --- A pass that an exception has cut short -----------------------------------------------------

// Returns whether the other ranks can reach the end of the pass.
using TakePart = std::function<bool(std::string_view text)>;

// Ends the pass together with the other ranks. `error` has ended it on this rank; null means an
// unknown exception. `take_part` gets the exception's text and joins the collectives for which the
// others wait, so that they receive it. If `take_part` throws, `own` is aborted. If `take_part`
// returns false, both groups are aborted with the text at once. Otherwise they are aborted after
// three times the `longest_pass` so far, and not before 5 s, because the other ranks may wait for
// this rank in a group of the program.
// Blocking: until the others have reached the end of the pass.
void end_with_the_others(const std::exception_ptr& error, const ProcessGroup& own,
                         const ProcessGroup& given, std::chrono::nanoseconds longest_pass,
                         const TakePart& take_part) noexcept;

// Aborts groups after a timeout, unless it is destroyed earlier.
class AbortLater {
 public:
  // Starts a thread that calls abort(reason) of `groups` after `patience`.
  // Errors: system if no thread can be started.
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
