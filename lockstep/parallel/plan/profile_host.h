// Measures this host under the load of all its ranks: reductions, copies, and the memory of a
// process without a model.
//
// Thread safety: none. Blocking: collective.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/parallel/plan/model_profile.h"

namespace lockstep::parallel {

// For all divisors of the group's size but 1, as sizes of groups that reduce at the same time.
std::vector<ReduceSample> measure_reductions(const ProcessGroup& world);

// Bytes per second that this rank copies while all others do the same.
double measure_copies(const ProcessGroup& world);

// Resident memory of this process: private, and shared with other processes, such as libraries.
struct ProcessBytes {
  double own = 0;
  double shared = 0;
};
ProcessBytes resident_bytes();

}  // namespace lockstep::parallel
