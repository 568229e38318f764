// `lockstep run`: the command line of lockstep::run().

// SPDX-License-Identifier: Apache-2.0
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/launch/console.h"
#include "lockstep/launch/run.h"
#include "tools/run/options.h"
#include "tools/standard_output.h"

namespace {

using namespace lockstep;

int say(LogFormat format, const std::string& problem, int exit_code) {
  say_error(format, problem);
  return exit_code;
}

int show(const std::string& text) {
  tools::print(text);
  return tools::end_output("lockstep run", 0);
}

int start(RunOptions options, bool dry_run) {
  const ProgramSearch program = find_program(options.arguments.front());
  if (program.path.empty()) return say(options.log.format, program.problem, program.exit_code);
  options.program = program.path;
  return dry_run ? show(describe_run(options)) : run(options);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  tools::RunCommandLine line;
  try {
    line = tools::parse_run(arguments);
  } catch (const Error& error) {
    const LogFormat format = tools::log_format_in(arguments);
    if (error.fault() != Fault::misuse) return say(format, error.what(), exit_system);
    return say(format, bare_text(error) + "; see lockstep run --help", exit_usage);
  }
  if (!line.help.empty()) return show(line.help);
  const LogFormat format = line.options.log.format;
  try {
    return start(std::move(line.options), line.dry_run);
  } catch (const Error& error) {
    const bool misused = error.fault() == Fault::misuse;
    return misused ? say(format, bare_text(error), exit_usage)
                   : say(format, error.what(), exit_system);
  } catch (const std::exception& error) {
    return say(format, error.what(), exit_system);
  }
}
