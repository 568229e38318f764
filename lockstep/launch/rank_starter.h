// Starts the program of each of a host's ranks, each in its place of the job.
//
// Thread safety: none. Blocking: until the programs run.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/launch/binding.h"
#include "lockstep/launch/error_file.h"
#include "lockstep/launch/output.h"
#include "lockstep/launch/process.h"
#include "lockstep/launch/rendezvous.h"
#include "lockstep/launch/run.h"

namespace lockstep {

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

  // Exit code of the job once a program could not be started, which has been said then; else 0.
  int error() const { return error_; }

 private:
  void wait_for_first();
  void say_where(int local_rank, pid_t pid) const;

  const RunOptions& options_;
  const Round& round_;
  const BindingPlan& binding_;
  Output& output_;
  std::deque<Process> starting_;
  int error_ = 0;
};

}  // namespace lockstep
