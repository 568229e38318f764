// `lockstep status`: shows the activity of this user's jobs on this host.

// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/text.h"
#include "lockstep/launch/status.h"
#include "tools/command_line.h"
#include "tools/shown_jobs.h"

namespace {

using lockstep::JobStatus;
using lockstep::RankStatus;

constexpr const char* about =
    "Shows this user's jobs on this host, and the activity of each rank.\n"
    "It asks the jobs' launchers and does not disturb the ranks.\n";

constexpr const char* examples = R"(
Examples:
  lockstep status                            # all jobs
  lockstep status 3fa9                       # the job whose id begins with 3fa9
  lockstep status --watch 2                  # again every 2 s, until Ctrl-C
  lockstep status --json | jq '.[].ranks[] | select(.state == "stopped")'

With `lockstep run --on-failure continue`, `start 2` is a rank that was started again, and `as 1 of
3` its number in the current group after a change. `ended` ranks have left or were lost.
A rank that is `waiting` is inside a collective; the missing ranks are named where they are known.
Percentages are where the rank's training loop has spent the last ten seconds. A launcher that is
stopped or stuck is shown as `does not answer`.

Exit code: 0, also without any job; 1 when JOB does not exist; 64 usage, 71 the system refused, 74
stdout cannot be written.
)";

struct CommandLine {
  std::string job;
  bool json = false;
  double watch = 0;
};

CommandLine parse(int argc, char** argv) {
  CommandLine line;
  CLI::App app(about, "lockstep status");
  app.footer(examples);
  app.add_option("job", line.job, "Only this job: its id, or the beginning of its id")
      ->type_name("JOB");
  app.add_flag("--json", line.json, "Print JSON: an array with an object for each job");
  app.add_option("--watch", line.watch, "Repeat the display every SECONDS")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.1, 1e6).description(""))
      ->check(lockstep::tools::not_nan());
  lockstep::tools::parse(app, argc, argv);
  return line;
}

std::string shown(const std::string& text) { return lockstep::clean_text(text, 4096); }

using Row = std::vector<std::string>;

// Two blanks separate columns; the last is unpadded.
std::string table(const std::vector<Row>& rows, const std::string& indent) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const Row& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (const Row& row : rows) {
    std::string line = indent;
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (widths[i] == 0) continue;  // Every cell is empty.
      line += row[i];
      if (i + 1 < row.size()) line.append(widths[i] - row[i].size() + 2, ' ');
    }
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

Row row_of(const JobStatus& job) {
  const bool known = job.state != lockstep::no_answer;
  return {job.job_id.empty() ? "-" : shown(lockstep::tools::short_id(job.job_id)),
          shown(job.host),
          known ? std::to_string(job.node) + " of " + std::to_string(job.nodes) : "-",
          known ? std::to_string(job.attempt) : "-",
          shown(job.state),
          known ? lockstep::tools::uptime_text(job.seconds) : "-",
          shown(job.program)};
}

// Empty before the first change.
std::string group_text(const RankStatus& rank) {
  if (rank.group_size == 0) return {};
  return "as " + std::to_string(rank.group_rank) + " of " + std::to_string(rank.group_size);
}

Row row_of(const RankStatus& rank) {
  return {"rank " + std::to_string(rank.rank),
          rank.pid > 0 ? std::to_string(rank.pid) : "-",
          shown(rank.state),
          rank.incarnation > 0 ? "start " + std::to_string(rank.incarnation + 1) : "",
          group_text(rank),
          rank.step > 0 ? "step " + std::to_string(rank.step) : "",
          rank.bound_to.empty() ? "" : "cores " + shown(rank.bound_to),
          shown(rank.phases),
          shown(describe(rank))};
}

std::string text_of(const JobStatus& job) {
  std::string text =
      table({{"JOB", "HOST", "NODE", "ATTEMPT", "STATE", "UPTIME", "PROGRAM"}, row_of(job)}, "");
  if (job.state == lockstep::no_answer)
    return text + "  its launcher, process " + std::to_string(job.agent_pid) + ", " +
           lockstep::no_answer + ": it may be stopped\n";
  std::vector<Row> ranks;
  for (const RankStatus& rank : job.ranks) ranks.push_back(row_of(rank));
  return ranks.empty() ? text : text + table(ranks, "  ");
}

std::string text_of(const std::vector<JobStatus>& jobs) {
  if (jobs.empty()) return std::string(lockstep::tools::no_jobs).append("\n");
  std::string text;
  for (const JobStatus& job : jobs) {
    if (!text.empty()) text += '\n';
    text += text_of(job);
  }
  return text;
}

// False if the requested job does not exist.
bool show(const CommandLine& line) {
  const auto jobs = lockstep::tools::jobs_named(line.job);
  if (!jobs) return false;
  const bool clears = line.watch > 0 && !line.json && ::isatty(STDOUT_FILENO) == 1;
  const std::string text = line.json ? to_json(*jobs) + "\n" : text_of(*jobs);
  lockstep::tools::print((clears ? "\033[H\033[2J" : "") + text);
  return true;
}

int run(const CommandLine& line) {
  while (show(line)) {
    if (!lockstep::tools::flush_output() || line.watch == 0)
      return lockstep::tools::end_output("lockstep status", 0);
    std::this_thread::sleep_for(std::chrono::duration<double>(line.watch));
    if (!line.json && ::isatty(STDOUT_FILENO) == 0) lockstep::tools::print("\n");
  }
  return lockstep::tools::complain_of_no_job("lockstep status", line.job);
}

}  // namespace

int main(int argc, char** argv) {
  const CommandLine line = parse(argc, argv);
  return lockstep::tools::run_or_complain("lockstep status", [&] { return run(line); });
}
