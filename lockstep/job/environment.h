// Who this process is in its job, as its launcher tells it through environment variables.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "lockstep/base/api.h"

namespace lockstep {

struct LaunchEnvironment {
  std::string launcher;  // "lockstep run", "torchrun", "Open MPI", "PMI", "SLURM", "environment".
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;           // Among the ranks of this host.
  int local_world_size = 1;     // When nobody says: all, or 1 with a MASTER_ADDR beyond loopback.
  std::string job_id;           // Equal on all ranks of the job, and of no other job on this host.
  std::optional<int> agent_fd;  // Our end of the socket pair to `lockstep run`.
  int attempt = 0;              // How often the job's ranks were started anew before this start.

  // HOST:PORT of the store through which ranks of several agents meet; empty where one agent
  // started all of them, or none did.
  std::string store = {};

  // HOST:PORT where rank 0 opens the job's store when its ranks are on several hosts: MASTER_ADDR
  // and MASTER_PORT, or for SLURM's tasks without them, on the step's first node, at the first port
  // that SLURM reserved for it, else at one of 20000 to 27992 that job and step choose. Empty when
  // nothing says it.
  std::string master = {};
  bool master_is_taken = false;  // torchrun keeps a store of its own there.
};

// Looks, in this order, for RANK and WORLD_SIZE (lockstep run, torchrun, Kubernetes operators),
// Open MPI's, PMI's (MPICH, Intel MPI) and SLURM's variables; the first set that is there counts.
// `lookup` is getenv() unless a test gives another.
// Errors: misuse when none is there (the message lists what was looked for), when a value is not
// a number or out of range, when one set contradicts itself, when of MASTER_ADDR and MASTER_PORT
// one is missing though ranks are on several hosts, or when RANK and WORLD_SIZE, set by hand inside
// of another launcher's job, contradict that launcher: the message shows both. The single task of
// `srun --pty` and the script of sbatch contradict nothing.
// docs/guide/clusters.md has the order and the rules.
LOCKSTEP_API LaunchEnvironment
read_environment(const std::function<const char*(const char*)>& lookup);
LOCKSTEP_API LaunchEnvironment read_environment();

}  // namespace lockstep
