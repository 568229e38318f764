// `lockstep run`: the command line of lockstep::run().

// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/bare_text.h"
#include "lockstep/comm/error.h"
#include "lockstep/comm/exit_code.h"
#include "lockstep/launch/program.h"
#include "lockstep/launch/run.h"
#include "tools/run/options.h"

namespace {

using namespace lockstep;

int say(const std::string& problem, int exit_code) {
  std::fprintf(stderr, "lockstep run: %s\n", problem.c_str());
  return exit_code;
}

int start(RunOptions options, bool dry_run) {
  const ProgramSearch program = find_program(options.arguments.front());
  if (program.path.empty()) return say(program.problem, program.exit_code);
  options.program = program.path;
  if (!dry_run) return run(options);
  const std::string description = describe_run(options);
  return std::fputs(description.c_str(), stdout) >= 0 && std::fflush(stdout) == 0 ? 0 : exit_system;
}

}  // namespace

int main(int argc, char** argv) {
  tools::RunCommandLine line;
  try {
    line = tools::parse_run({argv + 1, argv + argc});
  } catch (const Error& error) {
    if (error.fault() != Fault::misuse) return say(error.what(), exit_system);
    return say(bare_text(error) + "; see lockstep run --help", exit_usage);
  }
  if (!line.help.empty()) return std::fputs(line.help.c_str(), stdout) >= 0 ? 0 : exit_system;
  try {
    return start(std::move(line.options), line.dry_run);
  } catch (const Error& error) {
    const bool misused = error.fault() == Fault::misuse;
    return misused ? say(bare_text(error), exit_usage) : say(error.what(), exit_system);
  } catch (const std::exception& error) {
    return say(error.what(), exit_system);
  }
}
