// Command line of `lockstep tune`.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace lockstep::tools {

constexpr const char* tune_command = "lockstep tune";

struct TuneCommandLine {
  int global_batch = 0;
  std::vector<std::vector<std::string>> variants = {};  // The words of each --try.
  double seconds = 0;
  std::string json = {};
  std::string svg = {};
  bool save = false;
  std::vector<std::string> program = {};  // Includes its arguments.
};

// Does not return after --help or a wrong command line.
TuneCommandLine parse_tune(int argc, char** argv);

}  // namespace lockstep::tools
