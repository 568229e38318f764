// Starts the ranks of a program on this host, watches them, and ends them together.
//
// What is running then: a guardian (the process that called run()), its child the agent, and
// the ranks, children of the agent. Agent and guardian each end everything below them when the
// other is gone, so that nothing a rank started survives them, however they were ended.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "lockstep/comm/api.h"

namespace lockstep {

struct RunOptions {
  std::string program;                      // A path, see find_program().
  std::vector<std::string> arguments = {};  // Of the program, its own name (argv[0]) first.
  int nproc_per_node = 1;                   // How many ranks.
  bool verbose = false;  // Say on stderr which process and which cores each rank got.

  // How long ranks may take to end after SIGTERM. Too short a time cuts off their last
  // checkpoint; a rank that ignores SIGTERM keeps the launcher waiting this long.
  std::chrono::milliseconds shutdown_timeout = std::chrono::seconds(10);
};

// Returns once no process of the job is left, with what the launcher should exit with: 0 when
// every rank ended with 0; the exit code of the rank that failed first, or 128 + the signal that
// killed it; 128 + the signal that this launcher was told to stop with; 126 or 127 when the
// program could not be started; 71 when the operating system refused something else.
//
// Takes over the calling process (its signals, its descendants): call it from main(), with no
// other thread running and no other child process.
// Errors: misuse for options that cannot be; system.
LOCKSTEP_API int run(const RunOptions& options);

}  // namespace lockstep
