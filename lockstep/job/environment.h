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
  int local_rank = 0;           // Rank within this host.
  int local_world_size = 1;     // If no variable gives it: 1 under a launcher, or if MASTER_ADDR is
                                // not loopback; otherwise world_size.
  std::string job_id;           // Equal on all ranks of the job; differs from other jobs on this
                                // host.
  std::optional<int> agent_fd;  // This process's end of the socket pair to `lockstep run`.
  int attempt = 0;              // Number of restarts of the job's ranks before this start.

  // HOST:PORT of the rendezvous store for ranks of several agents; empty with one agent or none.
  std::string store = {};

  // HOST:PORT where rank 0 opens the job's store; empty if no variable gives it. Normally
  // MASTER_ADDR and MASTER_PORT.
  // Without them, SLURM tasks use the step's first node and the first port that SLURM reserved.
  // Without a reserved port, job and step select one of 20000 to 27992.
  // If mpirun or srun started all ranks on one host, either variable may be missing. The address is
  // then 127.0.0.1, and the job's id selects the port, unless another job may have the same id.
  std::string master = {};
  bool master_is_local = false;  // All ranks are on this host, and one variable was missing.
  bool master_is_taken = false;  // torchrun's own store uses it.
};

// Uses the first complete set of a launcher's variables, or the set that LOCKSTEP_LAUNCHER selects.
// With "none", this process is its own job. docs/guide/clusters.md lists the sets, their order and
// the rules. `lookup` is getenv() except in tests.
// Errors: misuse
// - when no set is present, or in a script of sbatch; the message lists the variables or the fix;
// - when a value is not a number or is out of range, or a set contradicts itself;
// - when only one of MASTER_ADDR and MASTER_PORT is set and ranks are on several hosts;
// - when RANK and WORLD_SIZE, set by hand in another launcher's job, contradict that launcher. The
//   message shows both. The single task of `srun --pty` and sbatch's script do not count.
LOCKSTEP_API LaunchEnvironment
read_environment(const std::function<const char*(const char*)>& lookup);
LOCKSTEP_API LaunchEnvironment read_environment();

}  // namespace lockstep
