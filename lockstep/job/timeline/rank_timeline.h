// Reads one rank's recorded spans.
//
// Errors: system; corrupt for a file of another version or format.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/base/error.h"
#include "lockstep/job/detail/operation.h"
#include "lockstep/job/step_times.h"

namespace lockstep {

// Times are nanoseconds of rank 0's steady clock.
struct RankTimeline {
  struct Phase {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    StepPhase phase = StepPhase::other;
  };
  struct Collective {
    std::int64_t begin = 0;
    std::int64_t waited_until = 0;
    std::int64_t end = 0;
    std::string group = {};
    std::uint64_t sequence = 0;
    std::uint64_t bytes = 0;
    int last = -1;
    std::uint32_t thread = 0;  // 0 for the training loop's.
    Operation operation = Operation::none;
    std::optional<Fault> fault = {};
  };

  std::uint64_t job = 0;  // TimelineRecorder::Options::job.
  int rank = 0;
  int attempt = 0;
  std::string host = {};
  std::vector<Phase> phases = {};
  std::vector<Collective> collectives = {};
  std::uint64_t phases_left_out = 0;
  std::uint64_t collectives_left_out = 0;

  std::int64_t wall_minus_this_ns = 0;  // The rank's wall clock minus the clock of these times.
  std::int64_t began_wall_ns = 0;       // Start of the recording, on that wall clock.
  int clock_comparisons = 0;            // With rank 0's clock.
  std::int64_t clock_error_ns = 0;      // The worst one's.
};

// TimelineRecorder::stamp(); empty without such a file.
LOCKSTEP_API std::optional<std::uint64_t> stamp_of_rank_timeline(const std::filesystem::path& file);

LOCKSTEP_API RankTimeline read_rank_timeline(const std::filesystem::path& file);

// The bytes of `file` without the unused parts of its ring buffers.
LOCKSTEP_API std::string packed_rank_timeline(std::string_view file);

}  // namespace lockstep
