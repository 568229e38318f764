// Starts the programs of a host's ranks, with environment variables for each rank's place in the
// job.
//
// Thread safety: none. Blocking: until the programs run.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/launch/binding.h"
#include "lockstep/launch/output.h"
#include "lockstep/launch/process.h"
#include "lockstep/launch/rank_files.h"
#include "lockstep/launch/rendezvous.h"
#include "lockstep/launch/run.h"

namespace lockstep::launch {

// A rank's place in the job.
struct RankPlace {
  int local_rank = 0;
  int local_world_size = 1;
  Round round = {};      // Rank 0 may listen on master_port of master_addr.
  int max_restarts = 0;  // As given to the launcher.
  // File where the rank, or torchrun's @record in it, writes its exception.
  std::string error_file = {};
  int agent_fd = -1;  // The rank's end of its socket to the agent.
  int threads = 1;    // Value of OMP_NUM_THREADS, unless the user has set it.

  // Width of the rank's lines on a terminal; empty without a terminal.
  std::optional<int> columns = {};
};

// Returns a rank's variables as "KEY=value": torchrun's, so that programs for torchrun run
// unchanged, and some of Lockstep's own. `inherited` ends with a null pointer, as environ does.
// Unless `inherited` configures malloc, it is set to keep freed memory for the next step, in huge
// pages.
std::vector<std::string> environment_of(const RankPlace& place, const char* const* inherited);

// Returns the launcher's message about a program that could not be started, and the job's exit
// code.
std::string describe(const StartFailure& failure, int rank, const std::string& program);
int exit_code_of(const StartFailure& failure);

struct StartedRank {
  pid_t pid = 0;
  FileDescriptor socket;  // To its AgentConnection.
  ErrorFile error_file;
};

class RankStarter {
 public:
  // All must outlive it.
  RankStarter(const RunOptions& options, const Round& round, const BindingPlan& binding,
              Output& output);

  // Returns before the program runs, unless many others are still starting. Errors: system.
  StartedRank start(int local_rank);

  // Waits until all started programs run.
  void wait();

  // Exit code of the job after a logged failure to start a program; else 0.
  int error() const { return error_; }

 private:
  void wait_for_first();
  void say_where(int local_rank, pid_t pid) const;

  const RunOptions& options_;
  const Round& round_;
  const BindingPlan& binding_;
  Output& output_;
  struct Starting {
    int rank = 0;
    Process process;
  };
  std::deque<Starting> starting_;
  int error_ = 0;
};

}  // namespace lockstep::launch
