// Starts a program, ends all descendants, and checks how a process handles signals.

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
  std::vector<std::string> environment;  // "KEY=value"; no others are inherited.
  // Descriptors of its stdin, stdout and stderr. Each is that number, or above 2.
  int in = 0;
  int out = 1;
  int err = 2;
  std::vector<int> inherited = {};     // Also kept open, with the same numbers.
  std::vector<int> cpus = {};          // If empty, this process's.
  std::vector<int> memory_nodes = {};  // Preferred NUMA nodes; if empty, this process's.
  int open_files = 0;                  // Soft limit; if 0, this process's.
};

struct StartFailure {
  // The failed call, such as "execve"; null if the program runs.
  const char* function = nullptr;
  int error = 0;  // Its errno.

  explicit operator bool() const { return function != nullptr; }

  // Whether the program, not the system, is the cause.
  bool is_of_program() const;
};

class Process {
 public:
  // The program leads its own process group and, if this process has nice value 0, its own session.
  // It has default signal handlers and no blocked signals, and is killed when the thread that
  // started it ends. Descriptors not in `command` must be close-on-exec. Errors: system.
  explicit Process(const Command& command);

  pid_t pid() const { return pid_; }

  // Blocks until the program runs or has failed to start.
  StartFailure wait_for_exec();

 private:
  pid_t pid_ = 0;
  FileDescriptor verdict_;  // Receives a StartFailure; a successful exec closes the other end.
};

// Raises the soft limit of open descriptors to the hard limit. Returns the previous one.
int raise_open_files();

// --- Descendants ---------------------------------------------------------------------------------

// Limit for the kernel to end a killed process.
constexpr std::chrono::milliseconds time_to_die{5000};

// Orphaned descendants become this process's children (PR_SET_CHILD_SUBREAPER).
void adopt_orphans();

std::vector<pid_t> children(const std::filesystem::path& proc = "/proc");

// Kills this process's children except `spared`, then the orphans that it adopts, until none is
// left. Reaps all that end. Block SIGCHLD and call adopt_orphans() before. False if some, of
// another user or stuck in the kernel, did not end in time.
bool end_descendants(std::chrono::milliseconds limit, const std::vector<pid_t>& spared = {});

// --- Signals -------------------------------------------------------------------------------------

// False if the process has ended.
bool catches(pid_t pid, int signal);

// By a signal or a debugger.
bool is_stopped(pid_t pid);

}  // namespace lockstep::launch
