// The command that a launcher runs.
//
// Launchers send it to each other, and so notice when two jobs use the same endpoint.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/launch/run.h"

namespace lockstep {

// Hosts run the same command if the digests are equal. The other texts are sanitised and cut, for
// messages.
struct JobCommand {
  static constexpr std::size_t most_arguments = 128;
  static constexpr std::size_t longest_argument = 128;  // Bytes.

  std::string program = {};                 // File name only: the folder may differ between hosts.
  std::vector<std::string> arguments = {};  // First arguments of the program.
  std::string digest = {};                  // SHA-256 of that name and of all arguments, uncut.
};

JobCommand job_command(const RunOptions& options);

// Words of two commands around the first difference: "`train ... --seed 1 ...`".
struct CommandDifference {
  std::string here;
  std::string there;
};

// Returns nothing when both are the same.
std::optional<CommandDifference> difference(const JobCommand& here, const JobCommand& there);

}  // namespace lockstep
