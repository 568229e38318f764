// Merges the timelines of all ranks for Perfetto (https://ui.perfetto.dev) and chrome://tracing:
// docs/guide/timeline.md.
//
// The file is JSON in Chrome's trace event format. Incomplete files of killed ranks, files of other
// versions and of earlier jobs are left out.
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
  std::uint64_t failed = 0;
  std::uint64_t left_out = 0;                // Spans overwritten in the ranks' ring buffers.
  std::vector<std::string> unreadable = {};  // With the reason.
  std::vector<std::string> other_jobs = {};
};

// Merges the ranks' files in `folders` into `file`. Errors: also misuse without files, and corrupt
// if none can be read.
LOCKSTEP_API TimelineSummary merge_timeline(const std::vector<std::filesystem::path>& folders,
                                            const std::filesystem::path& file);

// "2 ranks, 1,204 phases, 310 collectives, 155 arrows".
LOCKSTEP_API std::string describe(const TimelineSummary& summary);

}  // namespace lockstep
