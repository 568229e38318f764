// `lockstep top`: a live view of this user's jobs on this host.

// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cmath>
#include <string>

#include "tools/command_line.h"
#include "tools/shown_jobs.h"
#include "tools/top/screen.h"
#include "tools/top/terminal.h"

namespace {

using lockstep::tools::Terminal;

constexpr const char* command = "lockstep top";

constexpr const char* about =
    "Shows where the ranks of this user's jobs on this host spend their time, again every second.\n"
    "It asks the jobs' launchers and does not disturb the ranks.\n";

constexpr const char* examples = R"(
Examples:
  lockstep top                # all jobs; q quits
  lockstep top 3fa9           # the job whose id begins with 3fa9
  lockstep top --every 0.2    # more often
  lockstep top --once         # print it once; also where stdout is no terminal

Each rank has a bar of its last ten seconds: d data, f forward, b backward, r reduce, w waiting for
other ranks, o optimizer, c checkpoint, . other. WAITS FOR is the rank that came last most of the
time, and the share of the wait. A line below the ranks names the rank for which the others have
waited since the first step, and the phase in which it is late. STEPS/S is of the last ten seconds.
MEMORY is what the process uses, with what ranks share. On a narrow terminal, columns are left out.

Keys: q quits, space shows it anew.

Exit code: 0, also without any job; 1 when JOB does not exist, or ends while it is shown; 64 usage,
71 the system refused, 74 stdout cannot be written.
)";

struct CommandLine {
  std::string job;
  double every = 1;
  bool once = false;
};

CommandLine parse(int argc, char** argv) {
  CommandLine line;
  CLI::App app(about, command);
  app.footer(examples);
  app.add_option("job", line.job, "Only this job: its id, or the beginning of its id")
      ->type_name("JOB");
  app.add_option("--every", line.every, "Seconds between two views; 1 by default")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.1, 3600.).description(""))
      ->check(lockstep::tools::not_nan());
  app.add_flag("--once", line.once, "Print the view once");
  lockstep::tools::parse(app, argc, argv);
  return line;
}

int print_once(const CommandLine& line) {
  const auto jobs = lockstep::tools::jobs_named(line.job);
  if (!jobs) return lockstep::tools::complain_of_no_job(command, line.job);
  constexpr int columns = 100;
  lockstep::tools::print(lockstep::tools::draw(*jobs, {.columns = columns}));
  return lockstep::tools::end_output(command, 0);
}

// False if the requested job does not exist, or has ended.
bool watch(const CommandLine& line) {
  using std::chrono::milliseconds;
  const milliseconds pause(std::llround(line.every * 1000));
  const Terminal terminal;
  while (const auto jobs = lockstep::tools::jobs_named(line.job)) {
    const auto picture = lockstep::tools::draw(
        *jobs, {.columns = terminal.columns(), .rows = terminal.rows(), .colors = true});
    if (!terminal.show(picture)) return true;
    if (terminal.key(pause) == 'q') return true;
  }
  return false;
}

int run(const CommandLine& line) {
  if (line.once || !Terminal::is_there()) return print_once(line);
  return watch(line) ? 0 : lockstep::tools::complain_of_no_job(command, line.job);
}

}  // namespace

int main(int argc, char** argv) {
  const CommandLine line = parse(argc, argv);
  return lockstep::tools::run_or_complain(command, [&] { return run(line); });
}
