// Starts the ranks of a program on this host, watches them, and ends them together; together with
// the launchers of other hosts, where there are some, and anew after a failure, where that is
// allowed.
//
// What is running then: a guardian (the process that called run()), its child the agent, and
// the ranks, children of the agent. Agent and guardian each end everything below them when the
// other is gone, so that nothing a rank started survives them, however they were ended.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/launch/binding.h"
#include "lockstep/launch/log_options.h"

namespace lockstep {

// Which hosts make a job, and how they find each other.
struct Hosts {
  int least = 1;  // The job starts anew without hosts that it lost as long as so many are left,
  int most = 1;   // and with those that come as long as there are no more.

  // Fixed by whoever starts this launcher; else given by the host at `endpoint`, in the order in
  // which hosts come. Only for a fixed number of hosts.
  std::optional<int> node_rank = {};

  // Of a single host: where rank 0 may listen, MASTER_PORT; 0 for any free port.
  int master_port = 0;

  // HOST:PORT, [IPV6]:PORT: where the launchers meet. The host's own launcher listens there, and
  // the job ends with it. Not used for a single host.
  std::string endpoint = {};
  // Names the job there: launchers that say another id are turned away. While it is `unnamed`, so
  // are those that run another program or give it other arguments.
  std::string id = {};
  static constexpr const char* unnamed = "none";

  // How long to wait for the least number of hosts; then, where there may be more, for each next
  // one.
  std::chrono::milliseconds join_timeout = std::chrono::minutes(10);
  std::chrono::milliseconds last_call = std::chrono::seconds(3);
};

struct RunOptions {
  std::string program;                      // A path, see find_program().
  std::vector<std::string> arguments = {};  // Of the program, its own name (argv[0]) first.
  int nproc_per_node = 1;                   // How many ranks, on this host.
  Hosts hosts = {};

  // How often all ranks may be started anew after one of them failed or a host was lost.
  int max_restarts = 0;

  // The longest pause before such a start; 0 for none. The first restart is at once. The pause
  // before the next is 0.1 s, and it doubles with each failure. After an attempt that lived as long
  // as this, the next restart is at once again.
  std::chrono::milliseconds max_restart_delay = std::chrono::seconds(30);

  Binding bind = Binding::automatic;
  LogOptions log = {};
  bool verbose = false;  // Say on stderr which process and which cores each rank got.

  // How long ranks may take to end after SIGTERM. Too short a time cuts off their last
  // checkpoint; a rank that ignores SIGTERM keeps the launcher waiting this long.
  std::chrono::milliseconds shutdown_timeout = std::chrono::seconds(10);

  // What this launcher passes on to the ranks and ends with. The others keep their default action.
  std::vector<int> signals_to_handle = {};  // Empty: SIGTERM, SIGINT, SIGHUP, SIGQUIT.
};

// Returns once no process of the job is left on this host, with what the launcher should exit with:
// 0 when every rank ended with 0; the exit code of the rank that failed first, or 128 + the signal
// that killed it; 128 + the signal that this launcher was told to stop with; exit_preempted when
// the ranks made room; exit_unavailable when too few hosts came or the one at `endpoint` was lost;
// exit_not_executable or exit_not_found when the program could not be started; exit_system when the
// operating system refused something else.
//
// Takes over the calling process (its signals, its descendants): call it from main(), with no
// other thread running and no other child process.
// Errors: misuse for options that cannot be; system.
LOCKSTEP_API int run(const RunOptions& options);

// What run() would do here, for people: the ranks, where each runs and on which cores, the command
// and the variables that each gets. Starts nothing. Errors: as run()'s.
LOCKSTEP_API std::string describe_run(const RunOptions& options);

}  // namespace lockstep
