// Command lines of our commands: parsing with CLI11, and the end that an error leads to.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "tools/standard_output.h"

namespace lockstep::tools {

// Goes with CLI::Range, which lets a NaN pass. Not in help.
inline CLI::Validator not_nan() {
  return CLI::Validator(
      [](const std::string& text) {
        return std::isnan(std::strtod(text.c_str(), nullptr)) ? text + " is not a number" : "";
      },
      "");
}

// Prints --help to stdout. Reports an error in one line, with exit code 64, EX_USAGE of sysexits.h.
[[noreturn]] inline void end_parsing(const CLI::App& app, const CLI::ParseError& error) {
  constexpr int usage_error = 64;
  const std::string& command = app.get_name();
  if (error.get_exit_code() == 0) {
    print(app.help());
    std::exit(end_output(command.c_str(), 0));
  }
  std::fprintf(stderr, "%s: %s; see %s --help\n", command.c_str(), error.what(), command.c_str());
  std::exit(usage_error);
}

// Returns after success only: the command ends after --help or a wrong command line.
inline void parse(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    end_parsing(app, error);
  }
}

// Returns the exit code that `act` returns. Reports an exception in one line, with exit code 71,
// EX_OSERR of sysexits.h.
template <class Act>
int run_or_complain(const char* command, const Act& act) {
  constexpr int system_refused = 71;
  try {
    return act();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", command, error.what());
    return system_refused;
  }
}

}  // namespace lockstep::tools
