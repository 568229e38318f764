// Starts the ranks of a program on this host, monitors them, and ends them together.
//
// The caller of run() is the supervisor, its child is the agent, and the ranks are the agent's
// children. If supervisor or agent ends, the other one ends all its descendants.

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

enum class Binding {
  automatic,  // `cache` if each rank can have a core and there is no CPU quota; else `none`.
  numa,       // Each rank has all cores of a NUMA node, shared if necessary.
  cache,      // As `core`, with all cores of those cores' L3 caches.
  core,       // Each rank has its own adjacent cores: same L3 cache, same NUMA node.
  none,
};

// A rank's streams; the numbers are torchrun's.
enum class Streams { none = 0, out = 1, err = 2, both = 3 };

struct StreamChoice {
  Streams all = Streams::none;
  std::map<int, Streams> of_local_rank = {};  // Override `all`.

  Streams of(int local_rank) const;
};

// "3", or "0:1,1:2" for local ranks 0 and 1. Errors: misuse.
LOCKSTEP_API StreamChoice parse_streams(std::string_view text);

enum class LogFormat {
  text,  // Prefixed with "[rank] ".
  json,  // Objects with time, rank, stream and line; the launcher's own lines have a level.
};

struct LogOptions {
  // Folder for log files, mode 0600: DIRECTORY/JOB_RANDOM/attempt_K/LOCAL_RANK/ with stdout.log and
  // stderr.log, for redirected, teed and hidden streams, and error.json after an exception. If
  // empty, no files. A process that replaces a lost rank has its files in
  // LOCAL_RANK/incarnation_N/.
  std::string directory = {};
  StreamChoice redirects = {};     // To files only.
  StreamChoice tee = {};           // To files and to the console.
  std::set<int> local_ranks = {};  // Shown on the console; if empty, all.
  LogFormat format = LogFormat::text;
};

// Effect on the others when a rank fails: a signal ends it, or its exit code is not 0. The code
// exit_preempted is no failure after preempted() returned true, or with `continue_without`.
enum class OnFailure {
  end_all,  // The others end. The job restarts if max_restarts permits.
  // The others continue, and the failed rank is started again. For programs that form new groups
  // after a failure. Otherwise, ranks wait for the lost rank, or fail one by one.
  continue_without,
};

struct Hosts {
  // The job restarts without lost hosts while at least `least` are left, and with new hosts up to
  // `most`.
  int least = 1;
  int most = 1;

  // This host's number, only for a fixed number of hosts. If empty, the host at `endpoint` numbers
  // the hosts in the order of arrival.
  std::optional<int> node_rank = {};

  // For a single host: MASTER_PORT, on which rank 0 may listen; 0: any free port.
  int master_port = 0;

  // For several hosts: HOST:PORT or [IPV6]:PORT where that host's launcher listens. The job ends
  // with it.
  std::string endpoint = {};
  // The job's name. Launchers with another name are refused. In a job that is `unnamed`, so are
  // launchers with another program or arguments.
  std::string id = {};
  static constexpr const char* unnamed = "none";

  // Longest wait for `least` hosts.
  std::chrono::milliseconds join_timeout = std::chrono::minutes(10);
  // Wait for each further host after that, if more are allowed.
  std::chrono::milliseconds last_call = std::chrono::seconds(3);
};

struct RunOptions {
  std::string program;                      // A path; see find_program().
  std::vector<std::string> arguments = {};  // argv[0] first.
  int nproc_per_node = 1;                   // Ranks on this host.
  Hosts hosts = {};

  // Permitted restarts of all ranks after a failed rank or a lost host.
  int max_restarts = 0;

  // Longest pause before a restart; 0: none. The first restart is immediate. The next pause is 0.1
  // s and doubles with each failure. An attempt that ran as long as this limit resets it.
  std::chrono::milliseconds max_restart_delay = std::chrono::seconds(30);

  OnFailure on_failure = OnFailure::end_all;
  // With `continue_without`: the longest wait for a rank in a call, before the others continue
  // without it. Empty: that of the program.
  std::optional<std::chrono::milliseconds> leave_out_stragglers = {};
  // With `continue_without`: permitted starts of lost ranks on this host in an attempt. If empty,
  // ten times its ranks. Pauses are as before a restart.
  std::optional<int> max_replacements = {};

  Binding bind = Binding::automatic;
  LogOptions log = {};
  // ADDRESS:PORT or [IPV6]:PORT of metrics for Prometheus; port 0: any free port. Anyone who can
  // connect may read them. If empty, not served.
  std::string metrics = {};
  bool verbose = false;  // Write each rank's process and cores to stderr.

  // Time for ranks to end after SIGTERM. If short, the last checkpoint may be incomplete. If long,
  // a rank that ignores SIGTERM delays the launcher.
  std::chrono::milliseconds shutdown_timeout = std::chrono::seconds(10);

  // Forwarded to the ranks before the launcher ends. Others keep their default action.
  std::vector<int> signals_to_handle = {};  // If empty, SIGTERM, SIGINT, SIGHUP, SIGQUIT.
};

// --- Calls ---------------------------------------------------------------------------------------

// Returns the launcher's exit code once no process of the job is left on this host:
// - 0 when every rank exited with 0. With `continue_without`, one such rank is enough.
// - The first failed rank's, or 128 + the signal that killed it.
// - 128 + the signal that stopped this launcher.
// - exit_preempted when the ranks exited for a preemption.
// - exit_unavailable when too few hosts joined or the one at `endpoint` was lost.
// - exit_not_executable or exit_not_found when the program could not be started.
// - exit_system when another system call failed.
//
// Takes control of the process, its signals and descendants: call it from main(), with no other
// thread or child process. Errors: misuse for invalid options; system.
LOCKSTEP_API int run(const RunOptions& options);

// Describes what run() would do, and starts nothing: ranks with their host and cores, the command,
// and each rank's variables. Errors: as run()'s.
LOCKSTEP_API std::string describe_run(const RunOptions& options);

struct ProgramSearch {
  std::string path;     // Empty if it cannot be started.
  std::string problem;  // The reason, in one line.
  // As a shell's exit code: 126 not executable; 127 if the program or its interpreter is not found.
  // For a folder exit_usage.
  int exit_code = 0;
};

// As execvp() does: in PATH, or only at `name` if it has a slash or is "." or "..".
LOCKSTEP_API ProgramSearch find_program(const std::string& name);

}  // namespace lockstep
