// Starts the ranks of a program on this host, watches them, and ends them together.
//
// It works together with the launchers of other hosts, and restarts the ranks after a failure where
// that is allowed.
//
// Three generations of processes run: the guardian (the caller of run()), its child the agent, and
// the ranks as children of the agent. Agent and guardian each end all processes below them when the
// other is gone. So no process that a rank started survives them, however they were ended.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/api.h"

namespace lockstep {

// --- Options -------------------------------------------------------------------------------------

// Binding of ranks to cores of the host.
enum class Binding {
  automatic,  // `cache` if there is a core for each rank and no CPU quota; else `none`.
  numa,   // Each rank is bound to all cores of a NUMA node; ranks share nodes if nodes are fewer.
  cache,  // As `core`, but a rank may also use all other cores of the L3 caches of its own cores.
  core,   // Each rank has its own cores, neighbours in the machine: same L3 cache, same NUMA node.
  none,   // No rank is bound.
};

// Selection of a rank's two streams; the numbers are torchrun's.
enum class Streams { none = 0, out = 1, err = 2, both = 3 };

struct StreamChoice {
  Streams all = Streams::none;
  std::map<int, Streams> of_local_rank = {};  // Override `all`.

  Streams of(int local_rank) const;
};

// Parses "3", or "0:1,1:2" for local ranks 0 and 1. Errors: misuse.
LOCKSTEP_API StreamChoice parse_streams(std::string_view text);

enum class LogFormat {
  text,  // Each line follows its "[rank] ".
  json,  // Each line is an object: time, rank, stream, line; the launcher's own lines have a level.
};

// Options for the ranks' output.
struct LogOptions {
  // Folder for a job's log files, mode 0600: DIRECTORY/JOB_RANDOM/attempt_K/LOCAL_RANK/ with
  // stdout.log, stderr.log and, after a failure with an exception, error.json. No files are written
  // when empty.
  std::string directory = {};
  StreamChoice redirects = {};     // Streams that go to files only.
  StreamChoice tee = {};           // Streams that go to files as well as to the console.
  std::set<int> local_ranks = {};  // Local ranks whose output is shown; all when empty.
  LogFormat format = LogFormat::text;
};

// The hosts of a job, and how they find each other.
struct Hosts {
  // Fewest and most hosts. The job restarts without lost hosts while at least `least` are left, and
  // with new hosts while there are at most `most`.
  int least = 1;
  int most = 1;

  // Number of this host, set by the user. If empty, the host at `endpoint` numbers the hosts in the
  // order of arrival. Only for a fixed number of hosts.
  std::optional<int> node_rank = {};

  // For a single host: port on which rank 0 may listen, MASTER_PORT; 0 for any free port.
  int master_port = 0;

  // HOST:PORT or [IPV6]:PORT where the launchers meet. That host's own launcher listens there, and
  // the job ends with it. Not used for a single host.
  std::string endpoint = {};
  // Name of the job at the endpoint: launchers with another id are turned away. While it is
  // `unnamed`, launchers with another program or other arguments are turned away, too.
  std::string id = {};
  static constexpr const char* unnamed = "none";

  // Longest wait for `least` hosts.
  std::chrono::milliseconds join_timeout = std::chrono::minutes(10);
  // Wait for each further host after that, if more are allowed.
  std::chrono::milliseconds last_call = std::chrono::seconds(3);
};

struct RunOptions {
  std::string program;                      // A path, see find_program().
  std::vector<std::string> arguments = {};  // The program's own name (argv[0]) first.
  int nproc_per_node = 1;                   // Number of ranks on this host.
  Hosts hosts = {};

  // Allowed restarts of all ranks after a rank failed or a host was lost.
  int max_restarts = 0;

  // Longest pause before a restart; 0 for none. The first restart is at once. The pause before the
  // next is 0.1 s, and it doubles with each failure. After an attempt that lived as long as this
  // limit, the next restart is at once again.
  std::chrono::milliseconds max_restart_delay = std::chrono::seconds(30);

  Binding bind = Binding::automatic;
  LogOptions log = {};
  // ADDRESS:PORT or [IPV6]:PORT where the launcher serves figures for Prometheus; port 0 means any
  // free port. Anybody who can connect may read them. Not served when empty.
  std::string metrics = {};
  bool verbose = false;  // Write each rank's process and cores to stderr.

  // Time for ranks to end after SIGTERM. Too short a time cuts off their last checkpoint; a rank
  // that ignores SIGTERM keeps the launcher waiting this long.
  std::chrono::milliseconds shutdown_timeout = std::chrono::seconds(10);

  // Signals that this launcher passes on to the ranks and ends with. Others keep their default
  // action.
  std::vector<int> signals_to_handle = {};  // Empty: SIGTERM, SIGINT, SIGHUP, SIGQUIT.
};

// --- Calls ---------------------------------------------------------------------------------------

// Returns the launcher's exit code once no process of the job is left on this host:
// 0 when every rank ended with 0;
// the exit code of the rank that failed first, or 128 + the signal that killed it;
// 128 + the signal that stopped this launcher;
// exit_preempted when the ranks ended for a preemption;
// exit_unavailable when too few hosts came or the one at `endpoint` was lost;
// exit_not_executable or exit_not_found when the program could not be started;
// exit_system when the operating system refused something else.
//
// Takes over the calling process with its signals and descendants: call it from main(), with no
// other thread and no other child process.
// Errors: misuse for invalid options; system.
LOCKSTEP_API int run(const RunOptions& options);

// Describes what run() would do here, for people: the ranks, the host and cores of each one, the
// command, and each rank's variables. Starts nothing. Errors: as run()'s.
LOCKSTEP_API std::string describe_run(const RunOptions& options);

// Result of the search for the program to start: a mistyped name costs one line and no rank.
struct ProgramSearch {
  std::string path;     // Empty when it cannot be started.
  std::string problem;  // The reason then, in one line.
  // The code that shells exit with then: 126 not executable, 127 not found, also if the program's
  // interpreter is missing. For a folder exit_usage: it was no attempt to name a program.
  int exit_code = 0;
};

// Searches as execvp() does: in the folders of PATH, or only at `name` if it has a slash or is "."
// or "..".
LOCKSTEP_API ProgramSearch find_program(const std::string& name);

}  // namespace lockstep
