// A rank's connection to the job, which all of its groups share: its published activity, and hooks
// to report preemption and broken groups.
//
// Thread safety: any thread.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/job/activity.h"

namespace lockstep::comm {

// Calls into the rest of the process. The first two notify the agent, if there is one.
struct RankHooks {
  std::function<void()> expect_preemption = [] {};
  std::function<void()> agree_on_preemption = [] {};
  // Reports job ranks that ended a call to the host, the agent and the log.
  std::function<void(Failure)> report_break = [](const Failure&) {};
  // If this process ends because of another rank, reports it to other hosts.
  std::function<void()> tell_why_it_ends = [] {};
  // A rank's published activity; null for a rank on another host.
  std::function<std::shared_ptr<const Activity>(int rank)> activity_of = [](int) {
    return nullptr;
  };
  // Whether a rank of the job is known to be lost, except by its own abort().
  std::function<bool()> knows_of_loss = [] { return false; };
};

class RankInJob {
 public:
  explicit RankInJob(std::shared_ptr<Activity> activity, RankHooks hooks = {})
      : activity_(std::move(activity)), hooks_(std::move(hooks)) {}

  Activity& activity() const { return *activity_; }

  void set_step(std::uint64_t step) {
    step_is_told_.store(true, std::memory_order_relaxed);
    activity_->step.store(step, std::memory_order_relaxed);
  }

  // For a program that never calls set_step().
  void count_step() {
    if (!step_is_told_.load(std::memory_order_relaxed))
      activity_->step.fetch_add(1, std::memory_order_relaxed);
  }

  void count_reduced_bytes(std::uint64_t bytes) {
    reduced_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  }
  const std::atomic<std::uint64_t>& reduced_bytes() const { return reduced_bytes_; }

  void expect_preemption() const { hooks_.expect_preemption(); }
  void agree_on_preemption() const { hooks_.agree_on_preemption(); }
  void report_break(Failure failure) const { hooks_.report_break(std::move(failure)); }
  std::shared_ptr<const Activity> activity_of(int rank) const { return hooks_.activity_of(rank); }

  // At the first call only, for all groups of the rank.
  void tell_why_it_ends() {
    if (!why_is_told_.exchange(true)) hooks_.tell_why_it_ends();
  }

  bool knows_of_loss() const { return hooks_.knows_of_loss(); }

 private:
  const std::shared_ptr<Activity> activity_;
  const RankHooks hooks_;
  std::atomic<bool> step_is_told_{false};
  std::atomic<bool> why_is_told_{false};
  std::atomic<std::uint64_t> reduced_bytes_{0};
};

}  // namespace lockstep::comm
