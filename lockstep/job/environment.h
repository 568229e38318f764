// Reads this process's rank and job from the launcher's environment variables.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "lockstep/base/api.h"

namespace lockstep {

struct LaunchEnvironment {
  std::string launcher;  // "lockstep run", "torchrun", "environment", or one of job/launchers.cpp.
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;           // On this host.
  int local_world_size = 1;     // If unset: 1 under a launcher or if MASTER_ADDR is not loopback,
                                // otherwise world_size.
  std::string job_id;           // Equal on all ranks, unique on this host.
  std::optional<int> agent_fd;  // This end of the socket pair to `lockstep run`.
  int attempt = 0;              // Restarts of the ranks before this start.

  // HOST:PORT of the rendezvous store of several agents; otherwise empty.
  std::string store = {};

  // HOST:PORT where rank 0 opens the job's store, normally MASTER_ADDR and MASTER_PORT; empty if no
  // variable gives it. Without these, SLURM tasks use the step's first node, and the port of
  // slurm_port() (variables.h).
  // If mpirun or srun started all ranks on one host, either may be missing. The address is then
  // 127.0.0.1, and the job's id selects the port, unless another job may have the same id.
  std::string master = {};
  bool master_is_local = false;  // All ranks are on this host, and one variable was missing.
  bool master_is_taken = false;  // torchrun's own store uses it.
};

// Uses the first complete set of a launcher's variables, or the set that LOCKSTEP_LAUNCHER selects.
// With "none", this process is its own job. docs/guide/clusters.md has the rules. `lookup` is
// getenv() except in tests.
// Errors: misuse, with the variables or the fix, in these cases.
// - A set is missing or contradicts itself, or this process is a script of sbatch.
// - A value is not a number in range.
// - Only one of MASTER_ADDR and MASTER_PORT is set, and ranks are on several hosts.
// - RANK and WORLD_SIZE, set by hand in a launcher's job, contradict that launcher. The single task
//   of `srun --pty` and sbatch's script do not count as such.
LOCKSTEP_API LaunchEnvironment
read_environment(const std::function<const char*(const char*)>& lookup);
LOCKSTEP_API LaunchEnvironment read_environment();

}  // namespace lockstep
