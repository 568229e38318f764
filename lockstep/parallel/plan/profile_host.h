// Measures this host under the load of all its ranks: reductions, copies, and an empty process.
//
// Thread safety: none. Blocking: collective.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/plan/model_profile.h"

namespace lockstep::parallel {

// For all divisors of the group's size but 1, in groups of that size at the same time.
std::vector<ReduceSample> measure_reductions(const ProcessGroup& world);

// In bytes per second, while all other ranks do the same.
double measure_copies(const ProcessGroup& world);

// Resident memory: private, and shared with other processes, such as libraries.
struct ProcessBytes {
  double own = 0;
  double shared = 0;
};
ProcessBytes resident_bytes();

}  // namespace lockstep::parallel
