// SPDX-License-Identifier: Apache-2.0
#include "tools/tune/measure_division.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <deque>
#include <filesystem>
#include <numeric>
#include <sstream>
#include <thread>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/temporary_folder.h"
#include "lockstep/base/text.h"
#include "lockstep/base/text_file.h"
#include "lockstep/base/time.h"
#include "tools/shown_jobs.h"

namespace lockstep::tools {
namespace {

namespace fs = std::filesystem;

// Between reads of the counter, which take a fraction of a millisecond.
constexpr std::chrono::milliseconds poll_pause{50};

std::atomic<int> signalled{0};  // The last signal.

// The launcher of one run, a child process. Its output and the program's go to a file.
class Launcher {
 public:
  Launcher(const Division& division, const std::vector<std::string>& program, std::string job_id)
      : job_id_(std::move(job_id)), output_(folder_.path() / "output") {
    std::vector<std::string> command{
        fs::read_symlink("/proc/self/exe").parent_path() / "lockstep-run",
        "-n",
        std::to_string(division.ranks),
        "--nnodes",
        "1",
        "--max-restarts",
        "0",
        "--shutdown-timeout",
        "0",
        "--log-format",
        "text",
        "--rdzv-id",
        job_id_,
        "--"};
    const std::vector<std::string> words = command_for(division, program);
    command.insert(command.end(), words.begin(), words.end());
    ::setenv("OMP_NUM_THREADS", std::to_string(division.threads).c_str(), 1);
    start(command);
  }

  ~Launcher() { stop(); }
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  // Empty before they start and after they end.
  std::vector<RankStatus> ranks() const {
    const auto jobs = jobs_named(job_id_);
    return jobs && !jobs->empty() ? jobs->front().ranks : std::vector<RankStatus>();
  }

  bool has_ended() {
    if (!ended_ && ::waitpid(pid_, &status_, WNOHANG) == pid_) ended_ = true;
    return ended_;
  }

  // With a shutdown timeout of 0, SIGTERM kills the ranks at once.
  void stop() {
    if (has_ended()) return;
    ::kill(pid_, SIGTERM);
    while (::waitpid(pid_, &status_, 0) < 0 && errno == EINTR) {
    }
    ended_ = true;
  }

  // The code of an ended launcher, as in a shell.
  int exit_code() const {
    constexpr int signal_code = 128;
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : signal_code + WTERMSIG(status_);
  }

  std::string last_lines() const {
    constexpr std::size_t most = 12;
    constexpr std::size_t longest = 400;
    std::istringstream text(read_file(output_));
    std::deque<std::string> lines;
    for (std::string line; std::getline(text, line);) {
      lines.push_back("  " + clean_text(line, longest) + "\n");
      if (lines.size() > most) lines.pop_front();
    }
    return std::accumulate(lines.begin(), lines.end(), std::string());
  }

 private:
  // In its own process group: Ctrl-C reaches this process only, which ends the run in order.
  void start(std::vector<std::string>& command) {
    std::vector<char*> arguments;
    for (std::string& each : command) arguments.push_back(each.data());
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    constexpr mode_t private_file = 0600;
    ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output_.c_str(),
                                       O_WRONLY | O_CREAT | O_APPEND, private_file);
    ::posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
    posix_spawnattr_t attributes;
    ::posix_spawnattr_init(&attributes);
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    const int error =
        ::posix_spawn(&pid_, arguments.front(), &actions, &attributes, arguments.data(), environ);
    ::posix_spawnattr_destroy(&attributes);
    ::posix_spawn_file_actions_destroy(&actions);
    if (error == 0) return;
    errno = error;
    throw_errno(command.front());
  }

  const TemporaryFolder folder_;
  const std::string job_id_;
  const std::string output_;
  pid_t pid_ = 0;
  int status_ = 0;
  bool ended_ = false;
};

std::string new_job_id() {
  static int number = 0;
  return fmt::format("tune-{}-{}", ::getpid(), ++number);
}

void note_ranks(const std::vector<RankStatus>& ranks, DivisionRun& run) {
  std::int64_t memory = 0;
  double waited = 0;
  double total = 0;
  for (const RankStatus& rank : ranks) {
    memory += rank.memory;
    for (const auto& [phase, seconds] : rank.seconds) {
      total += seconds;
      if (phase == "wait") waited += seconds;
    }
  }
  run.memory = std::max(run.memory, memory);
  if (total > 0) run.wait = waited / total;
}

std::string problem_of(const Launcher& launcher, const StepRate& steps) {
  if (launcher.exit_code() != 0)
    return fmt::format("it ended with exit code {}", launcher.exit_code());
  if (steps.steps() == 0) return "it ended before a step was counted";
  return fmt::format("it ended after {} steps, which are too few to measure", steps.steps());
}

}  // namespace

DivisionRun measure_division(const Division& division, const std::vector<std::string>& program,
                             const RunLimits& limits,
                             const std::function<void(const std::string&)>& show) {
  Launcher launcher(division, program, new_job_id());
  DivisionRun run;
  StepRate steps;
  const auto begin = Clock::now();
  const auto seconds = [&] { return seconds_since(begin); };
  const auto in_seconds = [](auto time) { return std::chrono::duration<double>(time).count(); };
  for (auto next_shown = begin; signalled == 0; std::this_thread::sleep_for(poll_pause)) {
    if (launcher.has_ended()) break;
    const std::vector<RankStatus> ranks = launcher.ranks();
    if (!ranks.empty()) steps.observe(seconds(), ranks.front().step);
    note_ranks(ranks, run);
    if (Clock::now() >= next_shown) {
      show(fmt::format("{:.0f} s, {} steps", seconds(), steps.steps()));
      next_shown = Clock::now() + std::chrono::milliseconds(500);
    }
    const bool at_limit = steps.measured_seconds() >= in_seconds(limits.measured);
    if (steps.is_reliable() || (at_limit && steps.rate())) break;
    if (steps.steps() == 0 && seconds() >= in_seconds(limits.start)) break;
  }
  const bool ended_itself = launcher.has_ended();
  launcher.stop();
  run.signal = signalled;
  const bool failed = ended_itself && launcher.exit_code() != 0;
  if (!failed) run.steps_per_second = steps.rate();
  if (run.steps_per_second || run.signal != 0) return run;
  run.output = launcher.last_lines();
  run.problem = ended_itself ? problem_of(launcher, steps)
                             : fmt::format("no step within {:.0f} s that Lockstep counts",
                                           in_seconds(limits.start));
  return run;
}

void end_runs_at_signals() {
  struct sigaction action {};
  action.sa_handler = [](int signal) { signalled.store(signal); };
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) ::sigaction(signal, &action, nullptr);
}

}  // namespace lockstep::tools
