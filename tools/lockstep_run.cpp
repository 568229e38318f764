// `lockstep run`: the command line of lockstep::run().

// SPDX-License-Identifier: Apache-2.0
#include <exception>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/log.h"
#include "lockstep/base/text.h"
#include "lockstep/launch/console.h"
#include "lockstep/launch/run.h"
#include "tools/command_line.h"
#include "tools/run/job_timeline.h"
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

int run_with_timeline(const RunOptions& options, const tools::RunCommandLine& line) {
  const bool is_alone = options.hosts.most == 1;
  const tools::JobTimeline timeline(line.timeline, line.profile, is_alone);
  const int exit_code = run(options);
  try {
    const std::string result = timeline.finish();
    if (!result.empty()) say_info(options.log.format, result);
    return exit_code;
  } catch (const std::exception& error) {
    return say(options.log.format, "the timeline was lost: " + tools::text_of(error),
               exit_code == 0 ? exit_output_lost : exit_code);
  }
}

int start(const tools::RunCommandLine& line) {
  RunOptions options = line.options;
  const ProgramSearch program = find_program(options.arguments.front());
  if (program.path.empty()) return say(options.log.format, program.problem, program.exit_code);
  options.program = program.path;
  if (line.dry_run) return show(describe_run(options));
  return line.timeline.empty() ? run(options) : run_with_timeline(options, line);
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  tools::RunCommandLine line;
  set_log_sink(
      [&](LogLevel, std::string_view text) { say_info(tools::log_format_in(arguments), text); });
  try {
    line = tools::parse_run(arguments);
    set_log_sink({});
  } catch (const Error& error) {
    const LogFormat format = tools::log_format_in(arguments);
    if (error.fault() != Fault::misuse) return say(format, bare_text(error), exit_system);
    const std::string text = bare_text(error);
    return say(format, text.ends_with('?') ? text : text + "; see lockstep run --help", exit_usage);
  }
  if (!line.help.empty()) return show(line.help);
  const LogFormat format = line.options.log.format;
  try {
    return start(line);
  } catch (const std::exception& error) {
    return say(format, tools::text_of(error),
               fault_in(std::current_exception()) == Fault::misuse ? exit_usage : exit_system);
  }
}
