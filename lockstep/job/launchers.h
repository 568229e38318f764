// Identifies the launcher that started this process, for code that does not need the rank.
//
// Thread safety: that of getenv().

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "lockstep/base/api.h"

namespace lockstep {

// Whether MPI_Init() connects the ranks that `launcher`, a LaunchEnvironment::launcher, started.
// Flux may run without PMI and PMIx, so their own variables decide.
LOCKSTEP_API bool is_mpi_launcher(std::string_view launcher);

// Whether LOCKSTEP_LAUNCHER is set, or this process was started by a launcher that sets variables
// other than RANK. A script of sbatch does not count.
LOCKSTEP_API bool is_launched();

}  // namespace lockstep
