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

// The time of an all_reduce, from one that was measured among `measured_among` ranks, at least two:
// latency_s + bytes / bytes_per_s (docs/run-json.md). Among n ranks it has 2 log2(n) latencies, and
// 2 (n - 1) / n times the bytes pass the link (Rabenseifner's algorithm, docs/algorithms.md).
struct AllReduce {
  RunLink link = {};
  int measured_among = 2;

  double seconds(double bytes, int ranks) const;
};

}  // namespace lockstep::tools
