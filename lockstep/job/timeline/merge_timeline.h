// One timeline of all ranks, for Perfetto (https://ui.perfetto.dev) and chrome://tracing.
//
// The file is JSON in Chrome's trace event format. A rank is a process, whose first track has the
// phases of its training loop, and whose others have the collectives of each of its threads. An
// arrow leads from the rank that came last to a collective to each rank that waited for it.
// Operators of LibTorch, which `--profile` records, are further tracks.
//
// A collective that failed has the Fault of its Error in its name and as its argument `error`.
//
// A file that a killed rank has left unfinished, or that is of another version, is left out. So are
// those of other jobs than the one that began last.
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
  std::uint64_t failed = 0;                  // Collectives that an Error ended.
  std::uint64_t left_out = 0;                // Spans that were overwritten in the ranks' rings.
  std::vector<std::string> unreadable = {};  // Files that are left out, each with the reason.
  std::vector<std::string> other_jobs = {};  // Files of other jobs, which are left out.
};

// Merges the files that ranks have left in `folders` (TimelineRecorder) into `file`. Errors: also
// misuse if there is none, and corrupt if none can be read.
LOCKSTEP_API TimelineSummary merge_timeline(const std::vector<std::filesystem::path>& folders,
                                            const std::filesystem::path& file);

// For people: "2 ranks, 1,204 phases, 310 collectives, 155 arrows".
LOCKSTEP_API std::string describe(const TimelineSummary& summary);

}  // namespace lockstep
