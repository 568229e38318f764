// Search for the program to start, so that a mistyped name costs one line and no rank.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lockstep/base/api.h"

namespace lockstep {

struct ProgramSearch {
  std::string path;     // Empty when it cannot be started.
  std::string problem;  // The reason then, in one line.
  int exit_code = 0;    // The code that shells exit with then: 126 not executable, 127 not found.
};

// Searches as execvp() does: in the folders of PATH, or only at `name` if it has a slash.
LOCKSTEP_API ProgramSearch find_program(const std::string& name);

}  // namespace lockstep
