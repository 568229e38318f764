// Merges the timelines of all ranks for Perfetto (https://ui.perfetto.dev) and chrome://tracing.
//
// The file is JSON in Chrome's trace event format. A rank is a process. Its first track has the
// phases of its training loop; the others have the collectives of each thread. An arrow leads from
// the last rank that joined a collective to each rank that waited for it. LibTorch's operators,
// which `--profile` records, have further tracks.
//
// The name and the argument `error` of a failed collective contain its Fault.
//
// Incomplete files of killed ranks, files of other versions, and files of all jobs but the latest
// are left out.
//
// Errors: system.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

struct TimelineSummary {
  int ranks = 0;
  std::uint64_t phases = 0;
  std::uint64_t collectives = 0;
  std::uint64_t arrows = 0;
  std::uint64_t operators = 0;
  std::uint64_t failed = 0;                  // Collectives that failed.
  std::uint64_t left_out = 0;                // Spans that the ranks' rings had overwritten.
  std::vector<std::string> unreadable = {};  // Files that are left out, each with the reason.
  std::vector<std::string> other_jobs = {};  // Files of other jobs, which are left out.
};

// Merges the ranks' files in `folders` (TimelineRecorder) into `file`. Errors: also misuse if there
// are none, and corrupt if none can be read.
LOCKSTEP_API TimelineSummary merge_timeline(const std::vector<std::filesystem::path>& folders,
                                            const std::filesystem::path& file);

// Returns text such as "2 ranks, 1,204 phases, 310 collectives, 155 arrows".
LOCKSTEP_API std::string describe(const TimelineSummary& summary);

}  // namespace lockstep
