// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/process.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <climits>

#include "lockstep/comm/error.h"

namespace lockstep {
namespace {

std::vector<char*> pointers_to(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (const std::string& text : strings) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

// A set of any size, in the kernel's own layout: bit i of the array is CPU i.
std::vector<unsigned long> mask_of(const std::vector<int>& cpus) {
  constexpr int bits = 8 * sizeof(unsigned long);
  std::vector<unsigned long> mask;
  for (const int cpu : cpus) {
    mask.resize(std::max(mask.size(), static_cast<std::size_t>(cpu / bits + 1)));
    mask[static_cast<std::size_t>(cpu / bits)] |= 1UL << (cpu % bits);
  }
  return mask;
}

// Everything that the child needs, made before fork(): between fork() and exec() it may neither
// allocate nor lock.
struct Prepared {
  const Command& command;
  std::vector<char*> arguments;
  std::vector<char*> environment;
  std::vector<unsigned long> mask;
  pid_t parent;
};

// Only async-signal-safe calls here. Returns the errno of what failed, or not at all.
int become(const Prepared& prepared) {
  const Command& command = prepared.command;
  if (::setpgid(0, 0) != 0 || ::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return errno;
  if (::getppid() != prepared.parent) return ESRCH;  // It ended before the line above.
  if (::dup2(command.in, STDIN_FILENO) < 0 || ::dup2(command.out, STDOUT_FILENO) < 0 ||
      ::dup2(command.err, STDERR_FILENO) < 0)
    return errno;
  for (const int fd : command.inherited)
    if (::fcntl(fd, F_SETFD, 0) != 0) return errno;
  if (!prepared.mask.empty() &&
      ::sched_setaffinity(0, prepared.mask.size() * sizeof prepared.mask[0],
                          reinterpret_cast<const cpu_set_t*>(prepared.mask.data())) != 0)
    return errno;
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
  return errno;
}

}  // namespace

Process::Process(const Command& command) {
  const Prepared prepared{command, pointers_to(command.arguments), pointers_to(command.environment),
                          mask_of(command.cpus), ::getpid()};
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_errno("pipe");
  verdict_ = FileDescriptor(ends[0]);
  const FileDescriptor failure(ends[1]);
  pid_ = ::fork();
  if (pid_ < 0) throw_errno("fork");
  if (pid_ > 0) return;
  const int error_number = become(prepared);
  [[maybe_unused]] const ssize_t told = ::write(ends[1], &error_number, sizeof error_number);
  ::_exit(127);
}

int Process::wait_for_exec() {
  int error_number = 0;
  ssize_t received = 0;
  do {
    received = ::read(verdict_.get(), &error_number, sizeof error_number);
  } while (received < 0 && errno == EINTR);
  verdict_ = FileDescriptor();
  return received == sizeof error_number ? error_number : 0;
}

int raise_open_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) throw_errno("getrlimit");
  const auto before = static_cast<int>(std::min<rlim_t>(limit.rlim_cur, INT_MAX));
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);  // When refused, opening one too many will say so.
  return before;
}

}  // namespace lockstep
