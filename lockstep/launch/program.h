// Finds the program to start, so that a mistyped name costs one line and no rank.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lockstep/base/api.h"

namespace lockstep {

struct ProgramSearch {
  std::string path;     // Empty when it cannot be started, and then:
  std::string problem;  // why, in one line,
  int exit_code = 0;    // and what shells exit with for that: 126 not executable, 127 not found.
};

// As execvp() would: in the folders of PATH, or just there when `name` has a slash in it.
LOCKSTEP_API ProgramSearch find_program(const std::string& name);

}  // namespace lockstep
