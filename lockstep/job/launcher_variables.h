// The environment variables in which launchers pass a rank.
//
// Thread safety: the lookup's.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/job/variables.h"

namespace lockstep::job {

// Names are null for missing variables.
struct LauncherVariables {
  std::string_view name;      // A value of LOCKSTEP_LAUNCHER; several sets may share it.
  std::string_view launcher;  // LaunchEnvironment::launcher.
  bool is_mpi;                // MPI_Init() connects the ranks.
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;
  const char* hosts;                        // Number of hosts, with evenly distributed ranks.
  std::array<const char*, 2> job = {};      // Each distinguishes the host's jobs.
  std::array<const char*, 4> further = {};  // Less certain; used together.

  bool is_bare() const { return name == "env"; }
  bool is_slurm() const { return name == "slurm"; }

  // Whether rank and number of ranks are set.
  bool is_complete(const Variables& variables) const;
};

std::span<const LauncherVariables> launcher_variables();

// "none, env, mpi, openmpi, ...".
std::string launcher_names();

// Whether LOCKSTEP_LAUNCHER selects `set`, by its name or as "mpi".
bool is_named(const LauncherVariables& set, std::string_view value);

// Whether srun started this process. sbatch's script and a shell of salloc have the variables of
// task 0, but no task's step.
bool is_task_of_srun(const Variables& variables);

}  // namespace lockstep::job
