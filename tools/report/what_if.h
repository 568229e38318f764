// Estimates what would speed a run up, from its own split and the speed of its link.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/report/figures.h"

namespace lockstep::tools {

struct WhatIf {
  std::string question;    // "with batches ready in time".
  double step_ms = 0;      // With the change.
  double gain = 1;         // Throughput relative to now.
  std::string assumption;  // One sentence.
};

// Changes that gain one percent or more, best first.
std::vector<WhatIf> changes(const RunFile& run, const RunFigures& figures);

// `ranks`, or if empty, twice and four times as many.
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
