// Distances between a host's cores, and transfer times of cache lines.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace bench {

enum class Reach { same_l3, other_l3, other_package };
std::string name_of(Reach reach);

struct Pair {
  int first_cpu;
  int second_cpu;
};

// The share of the pairs of ranks at each Reach, with `lockstep run --bind core`. `ranks`: at least
// two, and at most one per core.
std::vector<double> shares_of_pairs(int ranks);

// For each existing distance on this host.
struct ReachPair {
  Reach reach;
  Pair cpus;
};
std::vector<ReachPair> pairs_of_host();

// Nanoseconds between two threads, each bound to its core.
struct LineTimes {
  double line = 0;    // A flag, from the store to the end of the other core's wait.
  double flags = 0;   // Each of many flags that the other core has set, `lane` bytes apart.
  double stream = 0;  // Each line of 512 KiB in a row that the other core has written.
};
// `lane` is in bytes: from one rank's flag to the next.
LineTimes time_lines(Pair cpus, std::size_t lane);

// Nanoseconds to reserve and zero 4 KiB of shared memory.
double time_page();

}  // namespace bench
