// The command line of `lockstep run`, and the variables that stand for its options.

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
  std::string help = {};  // What --help prints; nothing else is filled in then.
};

// What the arguments after `lockstep run` ask for. An option that is not there is taken from its
// variable. Errors: misuse, with one line for people, for what cannot be or contradicts itself.
RunCommandLine parse_run(const std::vector<std::string>& arguments);

// The form in which to say what is wrong with arguments that parse_run() refuses: that of
// --log-format, wherever it stands before the program, or of its variable; text where that is none.
LogFormat log_format_in(const std::vector<std::string>& arguments);

}  // namespace lockstep::tools
