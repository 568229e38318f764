// What our side and Open MPI's do alike: read the cases that bench.py gives, time them, and print
// the figures. gloo.py does the same, step for step.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace bench {

struct Case {
  std::string operation;
  std::string memory;     // What kind: for the one who has several.
  std::size_t bytes = 0;  // Of the larger of a rank's buffers; 0 where there is none.
  int warmup = 0;         // Batches that are not timed.
  int batches = 0;
  int batch = 1;  // Calls between two looks at the clock.

  std::size_t count() const { return bytes / sizeof(float); }
};

// From OPERATION:MEMORY:BYTES:WARMUP:BATCHES:BATCH.
Case parse_case(std::string_view text);
std::vector<Case> parse_cases(int argc, char** argv);
std::size_t largest(const std::vector<Case>& cases);

// Both have room for the largest case.
struct Memory {
  float* input;  // All that all_reduce and broadcast work on.
  float* output;
};

// Aligned as registered memory is, and never freed.
Memory allocate_any(std::size_t bytes);

struct Rank {
  int rank;
  int size;
};

// The seconds that one call took in each batch on this rank. Throws when the first call's result
// is wrong. Sums in place double their data with each call, and are begun anew, with a call that
// is not timed, before they become infinite.
std::vector<double> time_batches(const Case& work, Rank rank, const Memory& memory,
                                 const std::function<void()>& call);

// `seconds` hold the maximum over the ranks; the figure is their median.
void print_figure(const Case& work, std::vector<double> seconds);

}  // namespace bench
