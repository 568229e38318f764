// Reads the cases of bench.py, times them, and prints the figures. gloo.py does the same.

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
  std::string memory;     // Kind of memory, for a side with several kinds.
  std::size_t bytes = 0;  // Larger one of a rank's buffers; 0 without buffers.
  int warmup = 0;         // Batches that are not timed.
  int batches = 0;
  int batch = 1;  // Calls between two readings of the clock.

  std::size_t count() const { return bytes / sizeof(float); }
};

// Parses OPERATION:MEMORY:BYTES:WARMUP:BATCHES:BATCH.
Case parse_case(std::string_view text);
std::vector<Case> parse_cases(int argc, char** argv);
std::size_t largest(const std::vector<Case>& cases);

// Large enough for all cases.
struct Memory {
  float* input;  // The only buffer of all_reduce and broadcast.
  float* output;
};

// Unregistered, with the alignment of registered memory. Never freed.
Memory allocate_any(std::size_t bytes);

struct Rank {
  int rank;
  int size;
};

// Returns the seconds of one call in each batch on this rank. Throws if the first call's result is
// wrong. Sums in place double with each call, so an untimed call resets them in time.
std::vector<double> time_batches(const Case& work, Rank rank, const Memory& memory,
                                 const std::function<void()>& call);

// `seconds` are the maxima over the ranks; the figure is their median.
void print_figure(const Case& work, std::vector<double> seconds);

}  // namespace bench
