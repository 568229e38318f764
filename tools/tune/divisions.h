// Divisions of a host among the ranks of a program, for `lockstep tune`.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/launch/binding.h"

namespace lockstep::tools {

struct Division {
  int ranks = 1;
  int threads = 1;                        // For each rank.
  int batch = 0;                          // Samples of each rank in a step.
  std::vector<std::string> options = {};  // Appended to the program's arguments.

  bool operator==(const Division&) const = default;
};

// One rank with all cores, two ranks, and one rank per NUMA node, L3 cache and core. Omits numbers
// that do not divide the cores and the batch evenly. Each division comes without options and with
// each of `variants`. `global_batch` is in samples, `quota` in CPUs.
std::vector<Division> sensible_divisions(const Topology& topology, std::optional<double> quota,
                                         int global_batch,
                                         const std::vector<std::vector<std::string>>& variants);

// `program` and its arguments with the values of {batch}, {ranks} and {threads}, then the
// division's options.
std::vector<std::string> command_for(const Division& division,
                                     const std::vector<std::string>& program);

// "2 ranks x 1 thread" or "2 ranks x 1 thread, --amp bf16".
std::string describe(const Division& division);

}  // namespace lockstep::tools
