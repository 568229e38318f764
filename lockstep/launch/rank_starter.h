// Starts the programs of a host's ranks.
//
// Thread safety: none. Blocking: until programs run: wait(), and start() if 32 are starting.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
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

struct RankPlace {
  int local_rank = 0;
  int local_world_size = 1;
  Round round = {};
  int max_restarts = 0;
  bool continues = false;  // OnFailure::continue_without.
  std::optional<std::chrono::milliseconds> straggler_limit = {};
  int incarnation = 0;  // Earlier starts of this rank in this attempt.
  // Where the rank, or torchrun's @record in it, writes its exception.
  std::string error_file = {};
  int agent_fd = -1;  // The rank's end of the socket.
  int threads = 1;    // OMP_NUM_THREADS, unless the user sets it.

  // Width of the rank's lines; empty without a terminal.
  std::optional<int> columns = {};
};

// Fills in what is known before the job's first agreement.
RankPlace place_of(const RunOptions& options, int local_rank, int threads);

// Returns a rank's variables as "KEY=value": the inherited, torchrun's, and Lockstep's own.
// `inherited` ends with a null pointer. Unless `inherited` configures malloc, malloc keeps freed
// memory for the next step, in huge pages.
std::vector<std::string> environment_of(const RankPlace& place, const char* const* inherited);

std::string describe(const StartFailure& failure, int rank, const std::string& program);
int exit_code_of(const StartFailure& failure);

struct StartedRank {
  pid_t pid = 0;
  FileDescriptor socket;  // To its AgentConnection.
  ErrorFile error_file;
};

class RankStarter {
 public:
  // The references must outlive it.
  RankStarter(const RunOptions& options, const Round& round, const BindingPlan& binding,
              Output& output);

  // `incarnation`: as in RankPlace. May return before the program runs. Errors: system.
  StartedRank start(int local_rank, int incarnation = 0);

  void wait();

  // The launcher's exit code for the first program that could not be started; else 0.
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
