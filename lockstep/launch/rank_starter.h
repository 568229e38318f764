// Starts the program of each of a host's ranks, each in its place of the job, with environment
// variables that tell it who it is.
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

// The place of a rank in the job.
struct RankPlace {
  int local_rank = 0;
  int local_world_size = 1;
  Round round = {};      // master_port of master_addr is free for rank 0 to listen on.
  int max_restarts = 0;  // As given to the launcher.
  // File into which the rank, or torchrun's @record in it, writes its exception.
  std::string error_file = {};
  int agent_fd = -1;  // The rank's end of its socket to the agent.
  int threads = 1;    // Value of OMP_NUM_THREADS, unless the user has set it.

  // Width of the rank's lines on a terminal; empty without a terminal.
  std::optional<int> columns = {};
};

// Returns a rank's variables as "KEY=value": torchrun's, so that programs made for torchrun run
// unchanged, and a few of Lockstep's own. `inherited` ends with a null pointer, as environ does.
// Unless `inherited` configures malloc, a rank keeps freed memory for its next step, in huge pages.
std::vector<std::string> environment_of(const RankPlace& place, const char* const* inherited);

// Returns the launcher's message about a rank whose program does not run, and the job's exit code.
std::string describe(const StartFailure& failure, int rank, const std::string& program);
int exit_code_of(const StartFailure& failure);

struct StartedRank {
  pid_t pid = 0;
  FileDescriptor socket;  // To its AgentLine.
  ErrorFile error_file;
};

class RankStarter {
 public:
  // All must outlive it.
  RankStarter(const RunOptions& options, const Round& round, const BindingPlan& binding,
              Output& output);

  // Does not wait until the program runs, unless many others have yet to. Errors: system.
  StartedRank start(int local_rank);

  // Waits until all programs run that were started.
  void wait();

  // Exit code of the job once a program could not be started, which has been logged then; else 0.
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
