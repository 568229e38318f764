// Command lines: parsing with CLI11, and error exits.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "tools/standard_output.h"

namespace lockstep::tools {

// Use with CLI::Range, which accepts a NaN. Not in help.
inline CLI::Validator not_nan() {
  return CLI::Validator(
      [](const std::string& text) {
        return std::isnan(std::strtod(text.c_str(), nullptr)) ? text + " is not a number" : "";
      },
      "");
}

// Prints --help to stdout. Reports an error in one line, with exit_usage.
[[noreturn]] inline void end_parsing(const CLI::App& app, const CLI::ParseError& error) {
  const std::string& command = app.get_name();
  if (error.get_exit_code() == 0) {
    print(app.help());
    std::exit(end_output(command.c_str(), 0));
  }
  std::fprintf(stderr, "%s: %s; see %s --help\n", command.c_str(), error.what(), command.c_str());
  std::exit(exit_usage);
}

// Returns after success only; after --help or an error it ends the process.
inline void parse(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    end_parsing(app, error);
  }
}

// Returns the text for people: for an Error, without its fault and source location.
inline std::string text_of(const std::exception& error) {
  const auto* const known = dynamic_cast<const Error*>(&error);
  return known != nullptr ? bare_text(*known) : error.what();
}

// Returns the exit code of `act`. Reports an exception in one line, with the exit code of an
// Error's fault, or exit_system for any other.
template <class Act>
int run_or_complain(const char* command, const Act& act) {
  try {
    return act();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", command, text_of(error).c_str());
    const auto* const known = dynamic_cast<const Error*>(&error);
    return known != nullptr ? exit_code_of(known->fault()) : exit_system;
  }
}

}  // namespace lockstep::tools
