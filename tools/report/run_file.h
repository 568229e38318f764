// The run.json of a training, written by RunLog: docs/run-json.md.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/job/step_times.h"
#include "lockstep/job/straggler.h"

namespace lockstep::tools {

struct RunLink {
  std::string name = {};  // "shared memory", or an engine's.
  double latency_s = 0;
  double bytes_per_s = 0;
};

struct StepRow {
  double seconds = 0;
  std::array<double, step_phases> phases{};
};

struct RunScalar {
  std::vector<double> steps;
  std::vector<double> values;
};

struct RunFile {
  std::string name = {};  // As in tables.
  std::vector<std::pair<std::string, std::string>> about =
      {};                  // Program, versions, times: for people.
  std::string ended = {};  // "finished", "running", "failed".
  int ranks = 0;
  int hosts = 1;
  std::vector<std::string> host_of_rank = {};       // Empty if unknown.
  std::map<std::string, std::string> options = {};  // As the program set them.
  double samples = 0;                               // Sum over all ranks; 0 if unknown.
  std::vector<RunLink> links = {};
  double all_reduce_bytes = 0;         // Per step; 0 if unknown.
  std::vector<RankTimes> totals = {};  // By rank.
  std::int64_t first_step = 0;
  std::int64_t every = 1;                        // One row per this number of steps.
  std::vector<std::vector<StepRow>> steps = {};  // By rank; may be empty.
  std::map<std::string, RunScalar> scalars = {};
};

// A phase unknown to this version counts as `other`. Errors, which begin with `path`: corrupt for a
// file of another format, or that contradicts itself; system when it cannot be read.
RunFile read_run_file(const std::string& path);

}  // namespace lockstep::tools
