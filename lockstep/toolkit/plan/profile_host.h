// Measures reductions, copies and an empty process while all ranks load this host.
//
// Thread safety: none. Blocking: collective.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/toolkit/plan/model_profile.h"

namespace lockstep::plan {

// For all divisors of the group's size but 1, with all groups of that size at once.
std::vector<ReduceSample> measure_reductions(const ProcessGroup& world);

// In bytes per second, while all ranks copy.
double measure_copies(const ProcessGroup& world);

// Resident memory: private, and shared with other processes, such as libraries.
struct ProcessBytes {
  double own = 0;
  double shared = 0;
};
ProcessBytes resident_bytes();

}  // namespace lockstep::plan
