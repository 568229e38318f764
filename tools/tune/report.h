// The result of `lockstep tune`: a table, JSON, and a picture.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/tune/tune.h"

namespace lockstep::tools {

struct TunedProgram {
  std::vector<std::string> program = {};  // With placeholders.
  int global_batch = 0;
  int cores = 0;
};

// A line for each division, marking the best; then the output of failed ones, and the command that
// starts the best one.
std::string table_of(const Tuning& tuning, const TunedProgram& program);

std::string json_of(const Tuning& tuning, const TunedProgram& program);

// A bar for each division, with its range, as SVG.
std::string svg_of(const Tuning& tuning, const TunedProgram& program);

// Quoted for a shell.
std::string shell_command(const Division& division, const std::vector<std::string>& program);

}  // namespace lockstep::tools
