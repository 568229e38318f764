// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <iterator>
#include <sstream>
#include <string_view>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/processes.h"
#include "lockstep/base/time.h"

namespace lockstep::launch {
namespace {

std::vector<char*> pointers_to(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& text : strings) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// MPOL_PREFERRED_MANY of linux/mempolicy.h, since Linux 5.15; MPOL_PREFERRED uses only the first
// node.
constexpr int prefer_many = 5;
constexpr int prefer = 1;

// Bit i of the array is CPU or NUMA node i, as for the kernel.
std::vector<unsigned long> mask_of(const std::vector<int>& numbers) {
  constexpr int bits = 8 * sizeof(unsigned long);
  std::vector<unsigned long> mask;
  for (const int number : numbers) {
    mask.resize(std::max(mask.size(), static_cast<std::size_t>(number / bits + 1)));
    mask[static_cast<std::size_t>(number / bits)] |= 1UL << (number % bits);
  }
  return mask;
}

constexpr const char* exec_function = "execve";

// Between fork() and exec() the child must not allocate or lock.
struct Prepared {
  const Command& command;
  std::vector<char*> arguments;
  std::vector<char*> environment;
  std::vector<unsigned long> cpus;
  std::vector<unsigned long> memory_nodes;
  pid_t parent;
};

// With MPOL_BIND the kernel would kill the process although other nodes have memory. Some
// containers forbid the call; first use still places memory near the core.
void prefer_memory_of(const std::vector<unsigned long>& nodes) {
  if (nodes.empty()) return;
  // The kernel ignores the number's last bit.
  const unsigned long bits = 8 * sizeof nodes[0] * nodes.size() + 1;
  if (::syscall(SYS_set_mempolicy, prefer_many, nodes.data(), bits) != 0)
    ::syscall(SYS_set_mempolicy, prefer, nodes.data(), bits);
}

// Async-signal-safe. Returns only if a call fails.
// For sessions and nice values, see docs/launcher.md.
StartFailure become(const Prepared& prepared) {
  const Command& command = prepared.command;
  const auto failed = [](const char* function) { return StartFailure{function, errno}; };
  const bool is_nice = ::getpriority(PRIO_PROCESS, 0) != 0;
  if (is_nice && ::setpgid(0, 0) != 0) return failed("setpgid");
  if (!is_nice && ::setsid() < 0) return failed("setsid");
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return failed("prctl(PR_SET_PDEATHSIG)");
  // The parent ended before the line above.
  if (::getppid() != prepared.parent) return {"getppid", ESRCH};
  if (::dup2(command.in, STDIN_FILENO) < 0 || ::dup2(command.out, STDOUT_FILENO) < 0 ||
      ::dup2(command.err, STDERR_FILENO) < 0)
    return failed("dup2");
  for (const int fd : command.inherited)
    if (::fcntl(fd, F_SETFD, 0) != 0) return failed("fcntl(F_SETFD)");
  if (!prepared.cpus.empty() &&
      ::sched_setaffinity(0, prepared.cpus.size() * sizeof prepared.cpus[0],
                          reinterpret_cast<const cpu_set_t*>(prepared.cpus.data())) != 0)
    return failed("sched_setaffinity");
  prefer_memory_of(prepared.memory_nodes);
  if (command.open_files > 0) {
    rlimit limit{};
    ::getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = static_cast<rlim_t>(command.open_files);
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  for (int number = 1; number < NSIG; ++number) ::signal(number, SIG_DFL);
  sigset_t none;
  ::sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execve(command.program.c_str(), prepared.arguments.data(), prepared.environment.data());
  return failed(exec_function);
}

using namespace std::chrono_literals;

bool reap_all() {
  pid_t pid = 0;
  do {
    pid = ::waitpid(-1, nullptr, WNOHANG | __WALL);
  } while (pid > 0);
  return pid < 0 && errno == ECHILD;
}

// Returns at SIGCHLD, the deadline, or after 0.1 s: adopting an orphan sends no signal.
void wait_for_child(Deadline deadline) {
  sigset_t child;
  ::sigemptyset(&child);
  ::sigaddset(&child, SIGCHLD);
  const auto left = std::chrono::duration_cast<std::chrono::nanoseconds>(deadline - Clock::now());
  constexpr std::chrono::nanoseconds longest = 100ms;
  const timespec time{0, static_cast<long>(std::clamp(left, 0ns, longest).count())};
  ::sigtimedwait(&child, nullptr, &time);
}

// Empty if the process has ended.
std::string status_field(pid_t pid, std::string_view name) {
  std::istringstream in(read_proc_file(fmt::format("/proc/{}/status", pid)).value_or(""));
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(name)) return line.substr(line.find_first_not_of(" \t", name.size()));
  return {};
}

}  // namespace

Process::Process(const Command& command) {
  const Prepared prepared{command,
                          pointers_to(command.arguments),
                          pointers_to(command.environment),
                          mask_of(command.cpus),
                          mask_of(command.memory_nodes),
                          ::getpid()};
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_errno("starting a process: pipe2");
  verdict_ = FileDescriptor(ends[0]);
  const FileDescriptor verdict(ends[1]);
  pid_ = ::fork();
  if (pid_ < 0) throw_errno("starting a process: fork");
  if (pid_ > 0) return;
  // In the child, `function` has the same address.
  const StartFailure failure = become(prepared);
  [[maybe_unused]] const ssize_t sent = ::write(ends[1], &failure, sizeof failure);
  ::_exit(127);
}

StartFailure Process::wait_for_exec() {
  StartFailure failure;
  ssize_t received = 0;
  do {
    received = ::read(verdict_.get(), &failure, sizeof failure);
  } while (received < 0 && errno == EINTR);
  verdict_ = FileDescriptor();
  return received == sizeof failure ? failure : StartFailure{};
}

// Other errnos of execve(): resources are exhausted, or no program may be started.
bool StartFailure::is_of_program() const {
  if (function == nullptr || std::string_view(function) != exec_function) return false;
  constexpr int of_program[] = {ENOENT, ENOTDIR, EACCES, EPERM,        ENOEXEC, EISDIR,
                                ELOOP,  ETXTBSY, EINVAL, ENAMETOOLONG, ELIBBAD, E2BIG};
  return std::ranges::find(of_program, error) != std::end(of_program);
}

int raise_open_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) throw_errno("getrlimit(RLIMIT_NOFILE)");
  const auto before = static_cast<int>(std::min<rlim_t>(limit.rlim_cur, INT_MAX));
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);  // If refused, a later open fails clearly.
  return before;
}

std::vector<pid_t> children(const std::filesystem::path& proc) {
  std::vector<pid_t> found;
  for (const pid_t pid : process_ids(proc))
    if (const auto process = process_stat(pid, proc); process && process->parent == ::getpid())
      found.push_back(pid);
  return found;
}

void adopt_orphans() {
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) throw_errno("prctl(PR_SET_CHILD_SUBREAPER)");
}

bool end_descendants(std::chrono::milliseconds limit, const std::vector<pid_t>& spared) {
  const Deadline deadline = in(limit);
  while (!reap_all()) {
    std::vector<pid_t> doomed = children();
    std::erase_if(doomed, [&](pid_t child) {
      return std::find(spared.begin(), spared.end(), child) != spared.end();
    });
    if (doomed.empty()) return true;
    if (Clock::now() >= deadline) return false;
    for (const pid_t child : doomed) ::kill(child, SIGKILL);
    wait_for_child(deadline);
  }
  return true;
}

bool catches(pid_t pid, int signal) {
  const std::string mask = status_field(pid, "SigCgt:");
  return !mask.empty() && (std::stoull(mask, nullptr, 16) >> (signal - 1) & 1) != 0;
}

bool is_stopped(pid_t pid) {
  const std::string state = status_field(pid, "State:");
  return state.starts_with('T') || state.starts_with('t');
}

}  // namespace lockstep::launch
