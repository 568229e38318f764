// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/log.h"
#include "lockstep/base/processes.h"
#include "lockstep/base/text.h"
#include "lockstep/job/store/tcp_store.h"
#include "lockstep/launch/agent.h"
#include "lockstep/launch/console.h"
#include "lockstep/launch/process.h"
#include "lockstep/launch/rendezvous.h"
#include "lockstep/launch/run.h"

namespace lockstep {
namespace {

using launch::end_descendants;
using launch::time_to_die;

// Prevents later descriptors from becoming 0, 1 or 2.
void open_standard_streams() {
  int fd = 0;
  do {
    fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd < 0) throw_errno("opening /dev/null");
  ::close(fd);
}

void close_all_on_exec() {
  for (const std::string& name : names_in("/proc/self/fd")) {
    int fd = 0;
    std::from_chars(name.data(), name.data() + name.size(), fd);
    if (fd > STDERR_FILENO) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
}

sigset_t take_signals(const RunOptions& options) {
  ::signal(SIGCHLD, SIG_DFL);  // An inherited SIG_IGN would lose all exit codes.
  sigset_t signals;
  ::sigemptyset(&signals);
  // Only forwarded, to ranks that handle them.
  for (const int signal : {SIGCHLD, SIGUSR1, SIGUSR2}) ::sigaddset(&signals, signal);
  const std::vector<int> usual{SIGINT, SIGTERM, SIGQUIT, SIGHUP};
  for (const int signal : options.signals_to_handle.empty() ? usual : options.signals_to_handle)
    ::sigaddset(&signals, signal);
  struct sigaction hangup {};
  ::sigaction(SIGHUP, nullptr, &hangup);
  if (hangup.sa_handler == SIG_IGN) ::sigdelset(&signals, SIGHUP);  // nohup(1) ignores it.
  ::sigprocmask(SIG_BLOCK, &signals, nullptr);

  // A closed pipe, a file size limit, or a write from the background must not stop the launcher.
  sigset_t nuisances;
  ::sigemptyset(&nuisances);
  for (const int signal : {SIGPIPE, SIGTTOU, SIGXFSZ}) ::sigaddset(&nuisances, signal);
  ::sigprocmask(SIG_BLOCK, &nuisances, nullptr);
  return signals;
}

int be_agent(const RunOptions& options, const BindingPlan& binding, const sigset_t& signals,
             int lifeline) {
  // Leaves the terminal's foreground group: only the supervisor receives Ctrl-C, and forwards it.
  ::setpgid(0, 0);
  ::prctl(PR_SET_NAME, "lockstep-agent");
  ::prctl(PR_SET_PDEATHSIG,
          SIGCONT);  // Wakes a stopped agent when the supervisor ends.
  try {
    launch::adopt_orphans();
    return launch::Agent(options, binding, signals, lifeline).run();
  } catch (const Error& error) {
    say_error(options.log.format, bare_text(error));
    end_descendants(time_to_die);
    return error.fault() == Fault::misuse ? exit_usage : exit_system;
  } catch (const std::exception& error) {
    say_error(options.log.format, error.what());
    end_descendants(time_to_die);
    return exit_system;
  }
}

// The agent's wait status, if it has ended.
std::optional<int> reap(pid_t agent) {
  std::optional<int> agents_status;
  int status = 0;
  for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;)
    if (pid == agent) agents_status = status;
  return agents_status;
}

// The agent has read the token, which this environment must not show.
void forget_job_token() {
  try {
    read_job_token();
  } catch (const Error&) {  // The agent reports the error.
  }
}

// `inherited`: children of a shell that became the launcher.
int guard(pid_t agent, const sigset_t& signals, const std::vector<pid_t>& inherited,
          LogFormat format) {
  forget_job_token();
  std::optional<int> status;
  while (!status) {
    const int signal = ::sigwaitinfo(&signals, nullptr);
    if (signal == SIGCHLD)
      status = reap(agent);
    else if (signal > 0) {
      ::kill(agent, signal);
      ::kill(agent, SIGCONT);  // For a stopped agent.
    }
  }
  end_descendants(time_to_die, inherited);
  if (WIFEXITED(*status)) return WEXITSTATUS(*status);
  say_error(format, fmt::format("the agent was killed by signal {}; the ranks were ended",
                                WTERMSIG(*status)));
  return 128 + WTERMSIG(*status);
}

}  // namespace

int run(const RunOptions& options) {
  require_known_log_level();
  require(!options.program.empty() && !options.arguments.empty(), "there is no program to run");
  require(options.max_restarts >= 0, "the number of restarts is negative");
  require_hosts(options);
  const BindingPlan binding = plan_binding(options.nproc_per_node, options.bind);
  open_standard_streams();
  close_all_on_exec();
  const std::vector<pid_t> inherited = launch::children();
  launch::adopt_orphans();
  const sigset_t signals = take_signals(options);

  int lifeline[2];  // Never written to; the supervisor holds the other end.
  if (::pipe2(lifeline, O_CLOEXEC) != 0) throw_errno("starting the agent: pipe2");
  FileDescriptor agents_end(lifeline[0]);
  FileDescriptor supervisors_end(lifeline[1]);
  const pid_t agent = ::fork();
  if (agent < 0) throw_errno("starting the agent: fork");
  if (agent > 0) return guard(agent, signals, inherited, options.log.format);
  supervisors_end = FileDescriptor();
  ::_exit(be_agent(options, binding, signals, agents_end.get()));
}

}  // namespace lockstep
