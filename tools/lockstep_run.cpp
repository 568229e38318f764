// `lockstep run`: the command line of lockstep::run().

// SPDX-License-Identifier: Apache-2.0
#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/launch/cores.h"
#include "lockstep/launch/program.h"
#include "lockstep/launch/run.h"

namespace {

constexpr int usage_error = 64;     // EX_USAGE of sysexits.h
constexpr int system_refused = 71;  // and its EX_OSERR

constexpr const char* about =
    "Starts PROGRAM as several ranks on this host, watches them, and ends them together.\n"
    "Each rank finds RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT in its\n"
    "environment, as under torchrun.\n";

constexpr const char* examples = R"(
Examples:
  lockstep run -n 4 ./my_program --epochs 5
  lockstep run -n auto -v ./my_program          # one rank for each core; say where each runs
  lockstep run -n 2 python3 train_ddp.py        # any program that torchrun can start
  lockstep run -- ./-odd-name                   # -- ends the launcher's own options

Everything after PROGRAM is passed on to it. Rank 0 keeps stdin unless that is a terminal; the
others have /dev/null. Output comes in whole lines, each after its "[rank]".

Exit code: that of the rank that failed first (128 + signal when it was killed), 0 when none did;
128 + signal when the launcher was told to stop; 64 usage, 71 the system refused, 126 PROGRAM is
not executable, 127 PROGRAM is not found.
)";

struct CommandLine {
  std::string nproc_per_node = "1";
  bool verbose = false;
  double shutdown_timeout = 10;
  std::vector<std::string> command;
};

std::string count_or_auto(const std::string& text) {
  if (text == "auto") return {};
  const bool digits = !text.empty() && text.find_first_not_of("0123456789") == text.npos;
  if (digits && text.size() <= 5 && std::stoi(text) > 0) return {};
  return "must be a number of ranks or 'auto', not '" + text + "'";
}

void declare(CLI::App& app, CommandLine& line) {
  app.footer(examples);
  app.add_option("-n,--nproc-per-node", line.nproc_per_node,
                 "How many ranks; 'auto' is one for each usable core")
      ->envname("LOCKSTEP_NPROC_PER_NODE")
      ->type_name("N|auto")
      ->check(CLI::Validator(count_or_auto, ""))
      ->capture_default_str();
  app.add_flag("-v,--verbose", line.verbose, "Say which process and which cores each rank gets")
      ->envname("LOCKSTEP_VERBOSE");
  app.add_option("--shutdown-timeout", line.shutdown_timeout,
                 "How long ranks may take to end when told to, before they are killed")
      ->envname("LOCKSTEP_SHUTDOWN_TIMEOUT")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.0, 1e6).description(""))
      ->capture_default_str();
}

class Formatter : public CLI::Formatter {
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: lockstep run [OPTIONS] PROGRAM [ARGUMENTS...]\n";
  }
};

[[noreturn]] void refuse(const std::string& problem) {
  throw CLI::ValidationError(problem, CLI::ExitCodes::ValidationError);
}

// The program and its arguments, which CLI11 leaves as they are: a positional option of its own
// would take "[a,b]" apart.
std::vector<std::string> command_in(const CLI::App& app) {
  std::vector<std::string> command = app.remaining();
  const bool separated = !command.empty() && command.front() == "--";
  if (separated) command.erase(command.begin());
  if (command.empty()) refuse("PROGRAM is missing");
  if (!separated && command.front().starts_with('-')) refuse("unknown option " + command.front());
  return command;
}

CommandLine parse(int argc, char** argv) {
  CommandLine line;
  CLI::App app(about, "lockstep run");
  app.formatter(std::make_shared<Formatter>());
  app.prefix_command();
  declare(app, line);
  try {
    app.parse(argc, argv);
    line.command = command_in(app);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) std::exit(app.exit(error));  // --help
    std::fprintf(stderr, "lockstep run: %s; see lockstep run --help\n", error.what());
    std::exit(usage_error);
  }
  return line;
}

int ranks_of(const CommandLine& line) {
  if (line.nproc_per_node == "auto") return static_cast<int>(lockstep::usable_cpus().size());
  return std::stoi(line.nproc_per_node);
}

int start(const CommandLine& line) {
  const lockstep::ProgramSearch program = lockstep::find_program(line.command.front());
  if (program.path.empty()) {
    std::fprintf(stderr, "lockstep run: %s\n", program.problem.c_str());
    return program.exit_code;
  }
  return lockstep::run(
      {.program = program.path,
       .arguments = line.command,
       .nproc_per_node = ranks_of(line),
       .verbose = line.verbose,
       .shutdown_timeout = std::chrono::milliseconds(std::llround(line.shutdown_timeout * 1000))});
}

}  // namespace

int main(int argc, char** argv) {
  const CommandLine line = parse(argc, argv);
  try {
    return start(line);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "lockstep run: %s\n", error.what());
    return system_refused;
  }
}
