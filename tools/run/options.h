// Command line of `lockstep run`, and the variables that stand for its options.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "lockstep/launch/run.h"

namespace lockstep::tools {

struct RunCommandLine {
  RunOptions options =
      {};  // All but .program: .arguments begin with its name, which may be in PATH.
  bool dry_run = false;
  std::string help = {};  // Text for --help; if it is set, nothing else is filled in.
};

// Parses the arguments after `lockstep run`. A missing option is taken from its variable. Errors:
// misuse, with one line for people, for invalid or contradictory options.
RunCommandLine parse_run(const std::vector<std::string>& arguments);

// Returns the format for errors about arguments that parse_run() refuses: that of --log-format,
// anywhere before the program, or of its variable; otherwise text.
LogFormat log_format_in(const std::vector<std::string>& arguments);

}  // namespace lockstep::tools
