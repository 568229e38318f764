// The backward pass under way, from its first gradient until LibTorch has ended it.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <utility>

#include "lockstep/base/time.h"
#include "lockstep/parallel/gradients/gradient_pool.h"
#include "lockstep/parallel/gradients/graph_task.h"

namespace lockstep {

// Lives as long as LibTorch's graph task: until the pass is complete or an exception ends it.
class BackwardPass {
 public:
  // For the backward() that this thread is in. `pool`, if any, is armed. `at_end` does not throw.
  BackwardPass(const std::shared_ptr<GradientPool>& pool,
               std::function<void(const BackwardPass&)> at_end)
      : arming_(pool), result_(GraphTaskResult::of_this_thread()), at_end_(std::move(at_end)) {}
  ~BackwardPass() { at_end_(*this); }
  BackwardPass(const BackwardPass&) = delete;
  BackwardPass& operator=(const BackwardPass&) = delete;

  bool has_announced = false;  // To ranks without input left.
  bool has_reported = false;   // Otherwise the others wait, to whom an exception is reported.

  std::exception_ptr exception() const { return result_.exception(); }
  std::chrono::nanoseconds elapsed() const { return Clock::now() - begin_; }

 private:
  const GradientPool::Arming arming_;
  const GraphTaskResult result_;
  const std::function<void(const BackwardPass&)> at_end_;
  const Clock::time_point begin_ = Clock::now();
};

// Which graph tasks belong to the pass: each backward() is one, and so is each that it nests.
class PassUnderWay {
 public:
  // Whether `graph_task` is a part of the pass. `watched`: it has come to an output of forward().
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
  bool watched_ = false;  // It began at an output, so nested graph tasks are a part of it.
};

}  // namespace lockstep
