// Reports of ranks on their way to rank 0, as messages of a group of their own. Nobody waits for
// them before the end, and no Error of theirs leaves this header: without reports, the training
// goes on.
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
#include "lockstep/observe/run_log/rank_report.h"

namespace lockstep::observe {

// The end of a rank other than 0.
class ReportOutbox {
 public:
  explicit ReportOutbox(ProcessGroup group) : group_(std::move(group)) {}

  // Whether the last report has been sent. While rank 0 takes none, it stays false.
  bool is_idle() const { return !work_ || work_->completed(); }

  // Whether reports no longer reach rank 0.
  bool is_broken() const { return is_broken_ || (work_ && work_->error()); }

  void send(const RankReport& report);

  // Sends the last report after all others. Blocks until it is on its way, or the deadline.
  void finish(const RankReport& report, Deadline deadline);

 private:
  const ProcessGroup group_;
  std::optional<Work> work_;
  bool is_broken_ = false;
};

// Rank 0's end.
class ReportInbox {
 public:
  explicit ReportInbox(ProcessGroup group);

  // The reports that have come. Never blocks.
  std::vector<RankReport> take();

  // Whether no more can come: all ranks have sent their last one, or one was lost.
  bool is_over() const { return is_lost_ || have_all_ended(); }

  // Whether all ranks have sent their last one.
  bool have_all_ended() const { return ended_ == group_.size() - 1; }

 private:
  void expect_length();
  void expect_report();
  RankReport take_report();

  const ProcessGroup group_;
  const std::shared_ptr<std::uint64_t> length_ = std::make_shared<std::uint64_t>(0);
  std::shared_ptr<std::string> report_;  // The one that comes; null before its length has come.
  int sender_ = 0;                       // Its rank.
  Work next_;                            // Receives the length, then the report.
  int ended_ = 0;
  bool is_lost_ = false;
};

}  // namespace lockstep::observe
