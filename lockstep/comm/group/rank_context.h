// A rank's context in its job, which all of its groups share: its published activity, and reports
// to other ranks and the agent.
//
// By default, the virtual functions report nothing, as for a rank without a job.
// Thread safety: any thread.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/job/activity.h"

namespace lockstep::comm {

class RankContext {
 public:
  explicit RankContext(std::shared_ptr<Activity> activity) : activity_(std::move(activity)) {}
  virtual ~RankContext() = default;
  RankContext(const RankContext&) = delete;
  RankContext& operator=(const RankContext&) = delete;

  Activity& activity() const { return *activity_; }

  // This thread gets the Error of a failed call.
  static void note_failed_call() { has_failed_call_ = true; }

  // This thread begins a call. An Error that it got before is then not the cause of a later exit
  // (JobControlBlock::cause_of()).
  void note_call() const {
    if (!has_failed_call_) [[likely]]
      return;
    has_failed_call_ = false;
    activity_->resumed.fetch_add(1, std::memory_order_relaxed);
  }

  void set_step(std::uint64_t step) {
    sets_step_.store(true, std::memory_order_relaxed);
    activity_->step.store(step, std::memory_order_relaxed);
  }

  // For a program that never calls set_step().
  void count_step() {
    if (!sets_step_.load(std::memory_order_relaxed))
      activity_->step.fetch_add(1, std::memory_order_relaxed);
  }

  void count_reduced_bytes(std::uint64_t bytes) {
    reduced_bytes_->fetch_add(bytes, std::memory_order_relaxed);
  }
  std::shared_ptr<const std::atomic<std::uint64_t>> reduced_bytes() const { return reduced_bytes_; }

  // These two notify the agent, if there is one.
  virtual void expect_preemption() {}
  virtual void agree_on_preemption() {}

  // Reports to this host's ranks, the agent and the log which ranks of the job made a call fail.
  virtual void report_break(Failure) {}

  // See lockstep::report_cause_of_exit(). Only the first call reports.
  void report_cause_of_exit() {
    if (!exit_is_reported_.exchange(true)) report_exit();
  }

  // A rank's published activity; null if it is on another host or has not joined.
  virtual std::shared_ptr<const Activity> activity_of(int /*rank*/) const { return nullptr; }

  // Whether a rank of the job that had not called abort() is known to be lost.
  virtual bool knows_of_loss() const { return false; }

  // Whether rank `rank` of the job has died or, if on this host, has called abandon().
  virtual bool has_lost(int /*rank*/) const { return false; }

  // The world's group calls one of these once: finish() when all ranks destroy it together, leave()
  // when this rank leaves it in order, abandon() otherwise.
  virtual void finish() {}
  virtual void leave() {}
  virtual void abandon() {}

 private:
  virtual void report_exit() {}

  // Other libraries would have their own copy of the variable: they use group_hooks.h.
  static inline constinit thread_local bool has_failed_call_ = false;

  const std::shared_ptr<Activity> activity_;
  const std::shared_ptr<std::atomic<std::uint64_t>> reduced_bytes_ =
      std::make_shared<std::atomic<std::uint64_t>>(0);
  std::atomic<bool> sets_step_{false};
  std::atomic<bool> exit_is_reported_{false};
};

}  // namespace lockstep::comm
