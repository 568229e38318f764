// This process's place in its job, read from the launcher's environment variables.

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
  int local_world_size = 1;     // Without a variable for it: 1 under a launcher, or if MASTER_ADDR
                                // is not loopback; otherwise world_size.
  std::string job_id;           // Equal on all ranks of the job, and different from other jobs on
                                // this host.
  std::optional<int> agent_fd;  // This process's end of the socket pair to `lockstep run`.
  int attempt = 0;              // How often the job's ranks were restarted before this start.

  // HOST:PORT of the store through which ranks of several agents find each other; empty with one
  // agent or none.
  std::string store = {};

  // HOST:PORT where rank 0 opens the job's store. Empty when no variable names it. Normally
  // MASTER_ADDR and MASTER_PORT. SLURM tasks without them use the step's first node and the first
  // port that SLURM reserved. Without a reserved port, job and step choose one of 20000 to 27992.
  // If mpirun or srun started all ranks on one host, either variable may be missing: the address is
  // then 127.0.0.1, and the job's id chooses the port, unless it may be another job's, too.
  std::string master = {};
  bool master_is_local = false;  // It is of such a host, and not by both variables.
  bool master_is_taken = false;  // torchrun has a store of its own there.
};

// Uses the first set of a launcher's variables that is present, or the one that LOCKSTEP_LAUNCHER
// names; with "none", this process is a job of its own. docs/guide/clusters.md has the sets, their
// order and the rules. `lookup` is getenv() except in tests.
// Errors: misuse
// - when no set is present, and in a script of sbatch; the message lists the variables, or advises;
// - when a value is not a number or is out of range, or one set contradicts itself;
// - when only one of MASTER_ADDR and MASTER_PORT is set and ranks are on several hosts;
// - when RANK and WORLD_SIZE, set by hand inside another launcher's job, contradict that launcher.
//   The message shows both. The single task of `srun --pty` and sbatch's script contradict nothing.
LOCKSTEP_API LaunchEnvironment
read_environment(const std::function<const char*(const char*)>& lookup);
LOCKSTEP_API LaunchEnvironment read_environment();

}  // namespace lockstep
