// Identifies the launcher that started this process, for code that does not need the rank.
//
// Thread safety: that of getenv().

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

#include "lockstep/base/api.h"

namespace lockstep {

// Whether MPI_Init() connects the ranks of this LaunchEnvironment::launcher. For Flux, the
// variables of PMI and PMIx decide.
LOCKSTEP_API bool is_mpi_launcher(std::string_view launcher);

// Whether LOCKSTEP_LAUNCHER or a launcher's variable other than RANK is set. A script of sbatch
// does not count.
LOCKSTEP_API bool is_launched();

}  // namespace lockstep
