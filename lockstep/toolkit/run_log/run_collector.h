// Rank 0's part of a RunLog: its thread receives all ranks' reports and writes the files.
//
// Thread safety: any thread may call any member at any time; finish() only once.
// Errors: system, for the files. The first is logged, ends the writing and is thrown by finish().

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include "lockstep/base/thread.h"
#include "lockstep/base/time.h"
#include "lockstep/toolkit/run_log/event_file.h"
#include "lockstep/toolkit/run_log/rank_report.h"
#include "lockstep/toolkit/run_log/report_messages.h"
#include "lockstep/toolkit/run_log/run_record.h"
#include "lockstep/toolkit/run_log/scalar_means.h"

namespace lockstep::run_log {

struct RunFiles {
  std::optional<EventFile> events = {};
  std::filesystem::path json = {};
};

class RunCollector {
 public:
  // `inbox` provides the other ranks' reports. Writes at most once per `interval`, and at most a
  // hundredth of the time.
  RunCollector(RunFiles files, RunFacts facts, std::optional<ReportInbox> inbox,
               std::chrono::milliseconds interval);

  // Without finish(), run.json reports a failed run.
  ~RunCollector();
  RunCollector(const RunCollector&) = delete;
  RunCollector& operator=(const RunCollector&) = delete;

  // Rank 0's own report. `all_reduce_bytes`: per step so far.
  void take(RankReport report, double all_reduce_bytes);

  // `add` runs on the writing thread, or in finish().
  void take_events(std::function<void(EventFile&)> add);

  // Waits for the last reports until the deadline, and writes everything. Missing reports count as
  // a failed run.
  void finish(Deadline deadline);

 private:
  struct Own {
    std::vector<RankReport> reports = {};
    std::vector<std::function<void(EventFile&)>> events = {};
    double all_reduce_bytes = 0;
  };

  void live();
  void stop();
  bool receive() noexcept;
  bool take_in();
  void fail() noexcept;
  void add(const RankReport& report);
  void write(std::string_view ended) noexcept;
  void write_files(std::string_view ended);

  const std::chrono::milliseconds interval_;
  const Clock::time_point started_ = Clock::now();

  std::mutex mutex_;  // Guards the next three.
  std::condition_variable stops_;
  bool is_stopping_ = false;
  Own own_;

  // Belong to the writing thread; after its end, to the caller of finish() or the destructor.
  RunFiles files_;
  RunRecord record_;
  ScalarMeans means_;
  std::optional<ReportInbox> inbox_;
  bool is_finished_ = false;
  std::exception_ptr error_;

  Thread thread_;
};

}  // namespace lockstep::run_log
