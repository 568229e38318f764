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
  int in = 0;                            // What becomes its stdin,
  int out = 1;                           // stdout
  int err = 2;                      // and stderr. Each of these three is that number or above 2.
  std::vector<int> inherited = {};  // More descriptors that stay open in it, at the same numbers.
  std::vector<int> cpus = {};       // What it is bound to; as this process when empty.
  std::vector<int> memory_nodes = {};  // Where its memory comes from first; as this process's.
  int open_files = 0;                  // Its soft limit of descriptors; as this process when 0.
};

class Process {
 public:
  // The program leads a process group of its own, has default signal handlers and no signal
  // blocked, and is killed when the thread that started it ends. Every descriptor that
  // `command` does not name must be close-on-exec. Errors: system.
  explicit Process(const Command& command);

  pid_t pid() const { return pid_; }

  // Blocks until the program runs, and returns 0; or else the errno with which that failed.
  int wait_for_exec();

 private:
  pid_t pid_ = 0;
  FileDescriptor verdict_;  // Gets an errno, or just closed by a successful exec.
};

// Raises this process's soft limit of open descriptors as far as it goes; returns what it was.
int raise_open_files();

}  // namespace lockstep
