// Processes: starts a child program, ends all descendants, and reads signal handlers.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/base/file_descriptor.h"

namespace lockstep::launch {

struct Command {
  std::string program;                   // A path; PATH is not searched.
  std::vector<std::string> arguments;    // argv[0] first.
  std::vector<std::string> environment;  // "KEY=value"; it inherits no others.
  // Descriptors of its stdin, stdout and stderr. Each is that number, or above 2.
  int in = 0;
  int out = 1;
  int err = 2;
  std::vector<int> inherited = {};  // More descriptors to keep open, with the same numbers.
  std::vector<int> cpus = {};       // CPUs to bind it to; if empty, this process's.
  // Preferred NUMA nodes of its memory; if empty, this process's.
  std::vector<int> memory_nodes = {};
  int open_files = 0;  // Its soft limit of descriptors; if 0, this process's.
};

// Why a program does not run.
struct StartFailure {
  // The function that failed, such as "execve"; null if the program runs.
  const char* function = nullptr;
  int error = 0;  // Its errno.

  explicit operator bool() const { return function != nullptr; }

  // Whether the program is the cause. Otherwise it is the system.
  bool is_of_program() const;
};

class Process {
 public:
  // The program leads its own process group, and its own session if this process has nice value 0.
  // It has default signal handlers and no blocked signals. It is killed when the thread that
  // started it ends. Every descriptor not in `command` must be close-on-exec. Errors: system.
  explicit Process(const Command& command);

  pid_t pid() const { return pid_; }

  // Blocks until the program runs or has failed to start.
  StartFailure wait_for_exec();

 private:
  pid_t pid_ = 0;
  FileDescriptor verdict_;  // Receives a StartFailure; a successful exec closes it.
};

// Raises this process's soft limit of open descriptors to the hard limit. Returns the previous one.
int raise_open_files();

// --- Descendants ---------------------------------------------------------------------------------

// Time for the kernel to end a killed process; one that is stuck in the kernel never ends.
constexpr std::chrono::milliseconds time_to_die{5000};

// A descendant whose parent ends then becomes a child of this process (PR_SET_CHILD_SUBREAPER).
void adopt_orphans();

// Returns this process's current children, read from `proc`.
std::vector<pid_t> children(const std::filesystem::path& proc = "/proc");

// Kills and reaps this process's children except `spared`, then the orphans that it adopts, until
// none is left. Block SIGCHLD and call adopt_orphans() before.
// Returns false if some did not end within the limit, because they belong to another user or are
// stuck in the kernel.
bool end_descendants(std::chrono::milliseconds limit, const std::vector<pid_t>& spared = {});

// --- Signals -------------------------------------------------------------------------------------

// True if the process has a handler for the signal, according to /proc; false if it has ended.
bool catches(pid_t pid, int signal);

// True if a signal or a debugger has stopped the process.
bool is_stopped(pid_t pid);

}  // namespace lockstep::launch
