// The environment variables in which launchers pass a rank to a process.
//
// Thread safety: that of the lookup.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/job/variables.h"

namespace lockstep::job {

// A name is null if the launcher has no such variable.
struct LauncherVariables {
  std::string_view name;      // A value of LOCKSTEP_LAUNCHER; several sets may share it.
  std::string_view launcher;  // LaunchEnvironment::launcher.
  bool is_mpi;                // MPI_Init() connects the ranks.
  const char* rank;
  const char* world_size;
  const char* local_rank;
  const char* local_world_size;
  const char* hosts;                        // Number of hosts, with evenly distributed ranks.
  std::array<const char*, 2> job = {};      // Each distinguishes this job from others on the host.
  std::array<const char*, 4> further = {};  // These do so only together, and not always.

  bool is_bare() const { return name == "env"; }
  bool is_slurm() const { return name == "slurm"; }

  // Whether rank and number of ranks are set.
  bool is_complete(const Variables& variables) const;
};

std::span<const LauncherVariables> launcher_variables();

// All values of LOCKSTEP_LAUNCHER: "none, env, mpi, openmpi, ...".
std::string launcher_names();

// Whether LOCKSTEP_LAUNCHER selects `set`: by its own name, or as "mpi".
bool is_named(const LauncherVariables& set, std::string_view value);

// Whether srun started this process as a task. The script of sbatch and a shell of salloc have the
// variables of task 0, but no task's step.
bool is_task_of_srun(const Variables& variables);

}  // namespace lockstep::job
