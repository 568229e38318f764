// The command that a launcher runs. Launchers that meet tell each other, and so notice when two
// jobs have been given one endpoint.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/launch/run.h"

namespace lockstep {

// Hosts run the same if the digests are equal. The other texts are clean and cut, for messages.
struct JobCommand {
  static constexpr std::size_t most_arguments = 128;
  static constexpr std::size_t longest_argument = 128;  // Bytes.

  std::string program = {};                 // The file's name: its folder may vary with the host.
  std::vector<std::string> arguments = {};  // The program's first ones.
  std::string digest = {};                  // Of that name and of all arguments, in full.
};

JobCommand job_command(const RunOptions& options);

// The words of two commands around the first one that differs: "`train ... --seed 1 ...`".
struct CommandDifference {
  std::string here;
  std::string there;
};

// Empty when both are the same.
std::optional<CommandDifference> difference(const JobCommand& here, const JobCommand& there);

}  // namespace lockstep
