// Variables of this process's launcher, for code that does not need the rank.
//
// Thread safety: that of getenv().

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string_view>

#include "lockstep/base/api.h"

namespace lockstep {

// Whether MPI_Init() connects this LaunchEnvironment::launcher's ranks. For Flux, PMIX_RANK
// decides.
LOCKSTEP_API bool is_mpi_launcher(std::string_view launcher);

// Whether LOCKSTEP_LAUNCHER or a launcher's rank variable other than RANK is set. sbatch's script
// does not count.
LOCKSTEP_API bool is_launched();

// LOCKSTEP_INCARNATION: the rank's number of earlier processes; 0 if unset. Errors: misuse for
// another value.
LOCKSTEP_API int earlier_starts();

// LOCKSTEP_STRAGGLER_MS, which `lockstep run --leave-out-stragglers` sets: the longest wait for a
// rank before the others continue without it. Errors: misuse for a value that is not positive.
LOCKSTEP_API std::optional<std::chrono::milliseconds> straggler_limit();

}  // namespace lockstep
