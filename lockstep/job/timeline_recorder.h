// Records the phases of this process's training loop and every collective of its groups, for one
// timeline of all ranks (docs/guide/timeline.md).
//
// LOCKSTEP_TIMELINE_DIR is the folder for all ranks' files; without it nothing is recorded. A
// rank's last 262,144 phases and 65,536 collectives are kept, in 15 MiB.
//
// Thread safety: full; call start() once.
// Errors: only of start(): system, naming the file, if it cannot be written or the disk is full. No
// file is then left.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <optional>
#include <string>

#include "lockstep/base/api.h"
#include "lockstep/base/error.h"
#include "lockstep/job/activity.h"
#include "lockstep/job/detail/operation.h"
#include "lockstep/job/step_times.h"

namespace lockstep {

namespace job {
struct TimelineHeader;
}

inline std::int64_t steady_ns(Clock::time_point time) {
  return std::chrono::nanoseconds(time.time_since_epoch()).count();
}

class LOCKSTEP_API TimelineRecorder {
 public:
  static constexpr const char* variable = "LOCKSTEP_TIMELINE_DIR";

  struct Options {
    std::filesystem::path folder;  // Created if absent.
    std::uint64_t job = 0;         // Equal on all ranks, different for other jobs.
    int rank = 0;
    int world_size = 1;
    int attempt = 0;
    std::string host = {};
    std::uint64_t most_phases = 1 << 18;
    std::uint64_t most_collectives = 1 << 16;
  };

  static std::string spans_name(int attempt, int rank);
  static std::string operators_name(int attempt, int rank);

  // Null in fork()ed children, and unless this process records.
  static TimelineRecorder* current() { return current_.load(std::memory_order_acquire); }

  // Makes current() non-null until the process ends.
  static TimelineRecorder& start(const Options& options);

  explicit TimelineRecorder(const Options& options);
  ~TimelineRecorder();
  TimelineRecorder(const TimelineRecorder&) = delete;
  TimelineRecorder& operator=(const TimelineRecorder&) = delete;

  void phase(StepPhase phase, Ticks begin, Ticks end);

  struct Collective {
    GroupName group = {};
    Operation operation = Operation::none;
    std::uint64_t sequence = 0;
    std::uint64_t bytes = 0;
    Ticks begin = 0;
    Ticks waited_until = 0;  // When all ranks had joined.
    Ticks end = 0;
    int last = -1;  // Last to join, numbered in the job.
    std::optional<Fault> fault = {};
    bool is_of_loop = false;
  };
  void collective(const Collective& collective);

  // This process's steady clock plus `offset` is now rank 0's, within `error`.
  void add_offset(std::chrono::nanoseconds offset, std::chrono::nanoseconds error);

  // Updates the file's clock data.
  void note_clock();

  const std::filesystem::path& file() const { return file_; }
  std::filesystem::path operators_file() const;

  // Distinguishes the file from an earlier process's of that name.
  std::uint64_t stamp() const;

 private:
  static std::atomic<TimelineRecorder*> current_;

  job::TimelineHeader& header() const;

  const std::filesystem::path file_;
  std::size_t bytes_ = 0;
  std::byte* memory_ = nullptr;
  std::mutex clock_mutex_;
};

}  // namespace lockstep
