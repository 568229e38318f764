// A program that a test runs: its arguments, its output, and its exit.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "lockstep/base/file_descriptor.h"
#include "tests/soon.h"

namespace lockstep::test {

// False if the process has exited or is a zombie.
bool is_running(pid_t pid);

class RunningCommand {
 public:
  // `arguments` begin with the program's path. Its stdout and stderr go to files.
  explicit RunningCommand(std::vector<std::string> arguments,
                          std::vector<std::string> environment = {});

  // Kills the program if it still runs.
  ~RunningCommand();
  RunningCommand(const RunningCommand&) = delete;
  RunningCommand& operator=(const RunningCommand&) = delete;

  pid_t pid() const { return pid_; }
  std::string out() const;
  std::string err() const;

  // Returns its exit code, or 1000 + the signal that killed it. Kills it at the limit.
  int wait(std::chrono::milliseconds limit = std::chrono::seconds(60));

 private:
  FileDescriptor out_;
  FileDescriptor err_;
  pid_t pid_ = 0;
  bool ended_ = false;
};

struct Finished {
  int code;
  std::string out;
  std::string err;
};

// `environment` is added to this process's own.
Finished run_command(std::vector<std::string> arguments, std::vector<std::string> environment = {});

}  // namespace lockstep::test
