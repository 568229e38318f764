// Starts a program as a child of this process.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "lockstep/base/file_descriptor.h"

namespace lockstep {

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

class Process {
 public:
  // The program leads its own process group, with default signal handlers and no signal blocked. It
  // is killed when the thread that started it ends. Every descriptor not named in `command` must be
  // close-on-exec. Errors: system.
  explicit Process(const Command& command);

  pid_t pid() const { return pid_; }

  // Blocks until the program runs. Returns 0, or the errno of a failed exec.
  int wait_for_exec();

 private:
  pid_t pid_ = 0;
  FileDescriptor verdict_;  // Receives an errno; a successful exec closes it.
};

// Raises this process's soft limit of open descriptors to the hard limit. Returns the earlier one.
int raise_open_files();

}  // namespace lockstep
