// What would change a run's speed, by how much, and what has to hold for that.
//
// Every answer comes from the run's own split and from the latency and bandwidth of its link.
// Nothing is known of other models or other hosts.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/report/figures.h"

namespace lockstep::tools {

struct WhatIf {
  std::string question;    // "with batches ready in time".
  double step_ms = 0;      // Then.
  double gain = 1;         // Throughput then, relative to now.
  std::string assumption;  // In one sentence.
};

// Returns the changes that gain a percent or more, the best first.
std::vector<WhatIf> changes(const RunFile& run, const RunFigures& figures);

// Returns the run on other numbers of ranks: twice and four times as many, or those asked for.
std::vector<WhatIf> other_sizes(const Comparison& all, const std::vector<int>& ranks);

// Seconds of an all_reduce of `bytes` among `ranks`: 2 log2(ranks) latencies, and
// 2 (ranks - 1) / ranks * bytes through the link (Rabenseifner's algorithm, docs/algorithms.md).
double all_reduce_seconds(const RunLink& link, double bytes, int ranks);

}  // namespace lockstep::tools
