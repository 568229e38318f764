// Processes: starts a program as a child, ends all descendants, and examines signal handlers.

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
  std::vector<std::string> environment;  // "KEY=value"; nothing else is inherited.
  // Descriptors of its stdin, stdout and stderr. Each is that number, or above 2.
  int in = 0;
  int out = 1;
  int err = 2;
  std::vector<int> inherited = {};  // More descriptors that stay open in it, with the same numbers.
  std::vector<int> cpus = {};       // CPUs it is bound to; this process's when empty.
  // Nodes its memory comes from first; this process's when empty.
  std::vector<int> memory_nodes = {};
  int open_files = 0;  // Its soft limit of descriptors; this process's when 0.
};

// Why a program does not run.
struct StartFailure {
  // The function that failed, such as "execve"; null if the program runs.
  const char* function = nullptr;
  int error = 0;  // Its errno.

  explicit operator bool() const { return function != nullptr; }

  // Whether the program is the cause. Otherwise the system has refused.
  bool is_of_program() const;
};

class Process {
 public:
  // The program leads its own process group, and its own session if this process has the nice value
  // 0, with default signal handlers and no signal blocked. It is killed when the thread that
  // started it ends. Every descriptor not named in `command` must be close-on-exec. Errors: system.
  explicit Process(const Command& command);

  pid_t pid() const { return pid_; }

  // Blocks until the program runs, or does not.
  StartFailure wait_for_exec();

 private:
  pid_t pid_ = 0;
  FileDescriptor verdict_;  // Receives a StartFailure; a successful exec closes it.
};

// Raises this process's soft limit of open descriptors to the hard limit. Returns the earlier one.
int raise_open_files();

// --- Descendants ---------------------------------------------------------------------------------

// Time for the kernel to end a killed process; a process that is stuck in the kernel never ends.
constexpr std::chrono::milliseconds time_to_die{5000};

// From now on a descendant whose parent has ended becomes a child of this process.
void adopt_orphans();

// Returns this process's current children, as listed in `proc`.
std::vector<pid_t> children(const std::filesystem::path& proc = "/proc");

// Kills and reaps this process's children except `spared`, then the orphans that it adopts by that,
// until none is left. SIGCHLD must be blocked, and adopt_orphans() called before.
// Returns false if some could not be ended by the limit: they are another user's, or stuck in the
// kernel.
bool end_descendants(std::chrono::milliseconds limit, const std::vector<pid_t>& spared = {});

// --- Signals -------------------------------------------------------------------------------------

// True if the process has a handler for the signal, according to /proc; false when it has gone.
bool catches(pid_t pid, int signal);

// True if a signal or a debugger has stopped the process.
bool is_stopped(pid_t pid);

}  // namespace lockstep::launch
