// Starts the ranks of a program on this host, monitors them, and ends them together.
//
// Launchers of several hosts cooperate, and restart the ranks after a failure if permitted.
//
// Three levels of processes run: the supervisor (the caller of run()), its child the agent, and the
// agent's children, the ranks. Agent and supervisor each end all their descendants when the other
// has ended, so no process that a rank started outlives them.

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

// How ranks are bound to cores of the host.
enum class Binding {
  automatic,  // `cache` if each rank can have a core and there is no CPU quota; else `none`.
  numa,       // Each rank has all cores of a NUMA node; ranks share nodes if there are too few.
  cache,      // As `core`, but with all cores of the L3 caches of its own cores.
  core,       // Each rank has its own adjacent cores: same L3 cache, same NUMA node.
  none,       // No rank is bound.
};

// Selects a rank's streams, with torchrun's numbers.
enum class Streams { none = 0, out = 1, err = 2, both = 3 };

struct StreamChoice {
  Streams all = Streams::none;
  std::map<int, Streams> of_local_rank = {};  // Override `all`.

  Streams of(int local_rank) const;
};

// Parses "3", or "0:1,1:2" for local ranks 0 and 1. Errors: misuse.
LOCKSTEP_API StreamChoice parse_streams(std::string_view text);

enum class LogFormat {
  text,  // Each line is prefixed with "[rank] ".
  json,  // Each line is an object: time, rank, stream, line; the launcher's own lines have a level.
};

// Options for the ranks' output.
struct LogOptions {
  // Folder for a job's log files, mode 0600: DIRECTORY/JOB_RANDOM/attempt_K/LOCAL_RANK/ with
  // stdout.log, stderr.log and, after an exception, error.json. If empty, no files are written.
  std::string directory = {};
  StreamChoice redirects = {};     // Streams that go to files only.
  StreamChoice tee = {};           // Streams that go to files and to the console.
  std::set<int> local_ranks = {};  // Local ranks whose output is shown; if empty, all.
  LogFormat format = LogFormat::text;
};

// The hosts of a job, and their rendezvous.
struct Hosts {
  // Minimum and maximum number of hosts. The job restarts without lost hosts while at least `least`
  // are left, and with new hosts while there are at most `most`.
  int least = 1;
  int most = 1;

  // Number of this host, only for a fixed number of hosts. If empty, the host at `endpoint` numbers
  // the hosts in the order of arrival.
  std::optional<int> node_rank = {};

  // For a single host: port for rank 0 to listen on, MASTER_PORT; 0 for any free port.
  int master_port = 0;

  // HOST:PORT or [IPV6]:PORT of the launchers' rendezvous. That host's own launcher listens there;
  // the job ends with it. Not used for a single host.
  std::string endpoint = {};
  // Name of the job at the endpoint: launchers with another id are refused. While it is `unnamed`,
  // launchers with another program or other arguments are refused, too.
  std::string id = {};
  static constexpr const char* unnamed = "none";

  // Longest wait for `least` hosts.
  std::chrono::milliseconds join_timeout = std::chrono::minutes(10);
  // Wait for each further host after that, if more are allowed.
  std::chrono::milliseconds last_call = std::chrono::seconds(3);
};

struct RunOptions {
  std::string program;                      // A path; see find_program().
  std::vector<std::string> arguments = {};  // Starts with the program's own name (argv[0]).
  int nproc_per_node = 1;                   // Number of ranks on this host.
  Hosts hosts = {};

  // Permitted restarts of all ranks after a rank failed or a host was lost.
  int max_restarts = 0;

  // Longest pause before a restart; 0 for none. The first restart is immediate. The next pause is
  // 0.1 s and doubles with each failure. After an attempt that ran as long as this limit, the next
  // restart is immediate again.
  std::chrono::milliseconds max_restart_delay = std::chrono::seconds(30);

  Binding bind = Binding::automatic;
  LogOptions log = {};
  // ADDRESS:PORT or [IPV6]:PORT of the launcher's metrics for Prometheus; port 0 means any free
  // port. Every process that can connect may read them. If empty, not served.
  std::string metrics = {};
  bool verbose = false;  // Write each rank's process and cores to stderr.

  // Time for ranks to end after SIGTERM. If it is short, the ranks' last checkpoint may be
  // incomplete. If it is long, a rank that ignores SIGTERM delays the launcher.
  std::chrono::milliseconds shutdown_timeout = std::chrono::seconds(10);

  // Signals that this launcher forwards to the ranks before it ends. Others keep their default
  // action.
  std::vector<int> signals_to_handle = {};  // Empty: SIGTERM, SIGINT, SIGHUP, SIGQUIT.
};

// --- Calls ---------------------------------------------------------------------------------------

// Returns the launcher's exit code once no process of the job is left on this host:
// - 0 when every rank exited with 0;
// - the exit code of the rank that failed first, or 128 + the signal that killed it;
// - 128 + the signal that stopped this launcher;
// - exit_preempted when the ranks exited for a preemption;
// - exit_unavailable when too few hosts joined or the one at `endpoint` was lost;
// - exit_not_executable or exit_not_found when the program could not be started;
// - exit_system when another system call failed.
//
// Takes control of the calling process, its signals and descendants: call it from main(), with no
// other thread and no other child process.
// Errors: misuse for invalid options; system.
LOCKSTEP_API int run(const RunOptions& options);

// Describes for people what run() would do here: ranks with their host and cores, the command, and
// each rank's variables. Starts nothing. Errors: as run()'s.
LOCKSTEP_API std::string describe_run(const RunOptions& options);

// Result of the search for a program, so that a mistyped name fails in one line before any rank
// starts.
struct ProgramSearch {
  std::string path;     // Empty if it cannot be started.
  std::string problem;  // The reason, in one line.
  // The exit code of a shell: 126 not executable, 127 not found, also if the program's interpreter
  // is missing. For a folder exit_usage, because no program was meant.
  int exit_code = 0;
};

// Searches as execvp() does: in the folders of PATH, or only at `name` if it has a slash or is "."
// or "..".
LOCKSTEP_API ProgramSearch find_program(const std::string& name);

}  // namespace lockstep
