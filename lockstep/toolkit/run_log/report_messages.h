// Sends the ranks' reports to rank 0, in a separate group. No rank waits for them before the end.
// Errors in sending or receiving are not thrown: training continues without
// reports.
//
// Thread safety: one thread at a time uses an object.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/time.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/comm/work.h"
#include "lockstep/toolkit/run_log/rank_report.h"

namespace lockstep::run_log {

// For a rank other than 0.
class ReportOutbox {
 public:
  explicit ReportOutbox(ProcessGroup group) : group_(std::move(group)) {}

  // Whether the last send() has completed, perhaps before rank 0 receives the report.
  bool is_idle() const { return !work_ || work_->is_completed(); }

  // Whether reports no longer reach rank 0.
  bool is_broken() const { return is_broken_ || (work_ && work_->error()); }

  void send(const RankReport& report);

  // Sends the last report. Blocks until it is sent, or the deadline.
  void finish(const RankReport& report, Deadline deadline);

 private:
  const ProcessGroup group_;
  std::optional<Work> work_;
  bool is_broken_ = false;
};

// For rank 0.
class ReportInbox {
 public:
  explicit ReportInbox(ProcessGroup group);

  // Never blocks.
  std::vector<RankReport> take();

  // No more can arrive: all other ranks have sent their last report, or receiving failed.
  bool is_over() const { return is_lost_ || have_all_ended(); }

  bool have_all_ended() const { return ended_ == group_.size() - 1; }

 private:
  void expect_length();
  void expect_report();
  RankReport take_report();

  const ProcessGroup group_;
  const std::shared_ptr<std::uint64_t> length_ = std::make_shared<std::uint64_t>(0);
  std::shared_ptr<std::string> report_;  // Being received; null until its length has arrived.
  int sender_ = 0;
  Work next_;  // Length, then report.
  int ended_ = 0;
  bool is_lost_ = false;
};

}  // namespace lockstep::run_log
