// Reads this process's rank and job from the launcher's environment variables.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "lockstep/base/api.h"

namespace lockstep {

struct LaunchEnvironment {
  std::string launcher;  // "lockstep run", "torchrun", "none", or one of launcher_variables.cpp.
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;           // On this host.
  int local_world_size = 1;     // If unknown: 1 under a launcher, or for another MASTER_ADDR than
                                // loopback without LOCAL_RANK; otherwise world_size.
  std::string job_id;           // Equal on all ranks; unique on this host if a variable gives it.
  std::optional<int> agent_fd;  // Socket pair to `lockstep run`.
  int attempt = 0;              // Restarts before this start.

  // HOST:PORT of the rendezvous store if there are several agents, one per host.
  std::string store = {};

  // HOST:PORT where rank 0 opens the job's store: MASTER_ADDR and MASTER_PORT, else slurm_master()
  // (variables.h). If mpirun or srun started all ranks on one host, either or both variables may be
  // missing. Defaults: 127.0.0.1, and slurm_port() or a port derived from the job's id. Empty if no
  // variable distinguishes the job from others.
  std::string master = {};
  bool master_is_local = false;  // On one host, a launcher's ranks miss a variable.
  bool master_is_taken = false;  // torchrun's own store uses it.
};

// Uses the first complete set of a launcher's variables; LOCKSTEP_LAUNCHER limits the choice.
// "none": this process is its own job. docs/guide/clusters.md has the rules. `lookup` is getenv()
// except in tests.
// Errors: misuse, with the variables or the fix, in these cases.
// - No set is complete, the set contradicts itself, or this is sbatch's script for several tasks.
// - A value is not a number in range, or LOCKSTEP_LAUNCHER names no launcher.
// - Only one of MASTER_ADDR and MASTER_PORT is set, and ranks are on several hosts.
// - RANK and WORLD_SIZE, set by hand in a launcher's job, contradict that launcher. The single task
//   of `srun --pty` and sbatch's script are no launcher's job. LOCKSTEP_LAUNCHER=env permits it.
LOCKSTEP_API LaunchEnvironment
read_environment(const std::function<const char*(const char*)>& lookup);
LOCKSTEP_API LaunchEnvironment read_environment();

}  // namespace lockstep
