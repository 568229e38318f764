// End of a command whose command line prevents its start.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>

#include "tools/standard_output.h"

namespace lockstep::tools {

// Prints --help to stdout. Reports an error in one line, with exit code 64, EX_USAGE of sysexits.h.
[[noreturn]] inline void end_parsing(const CLI::App& app, const CLI::ParseError& error) {
  constexpr int usage_error = 64;
  const std::string command = app.get_name();
  if (error.get_exit_code() == 0) {
    print(app.help());
    std::exit(end_output(command.c_str(), 0));
  }
  std::fprintf(stderr, "%s: %s; see %s --help\n", command.c_str(), error.what(), command.c_str());
  std::exit(usage_error);
}

}  // namespace lockstep::tools
