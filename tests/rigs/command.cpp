// SPDX-License-Identifier: Apache-2.0
#include "tests/rigs/command.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include "lockstep/base/error.h"
#include "lockstep/base/processes.h"

namespace lockstep::test {
namespace {

FileDescriptor make_file() {
  FileDescriptor fd(::memfd_create("output", MFD_CLOEXEC));
  if (!fd) throw_errno("memfd_create");
  ::fcntl(fd.get(), F_SETFL, O_APPEND);
  return fd;
}

std::string contents_of(const FileDescriptor& file) {
  std::string text;
  std::array<char, 65536> buffer;
  for (ssize_t length = 0; (length = ::pread(file.get(), buffer.data(), buffer.size(),
                                             static_cast<off_t>(text.size()))) > 0;)
    text.append(buffer.data(), static_cast<std::size_t>(length));
  return text;
}

[[noreturn]] void become(std::vector<std::string> arguments, std::vector<std::string> environment,
                         int out, int err) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::dup2(out, STDOUT_FILENO);
  ::dup2(err, STDERR_FILENO);
  for (std::string& variable : environment) ::putenv(variable.data());
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  ::execv(pointers[0], pointers.data());
  ::_exit(127);
}

}  // namespace

bool is_running(pid_t pid) {
  const auto process = process_stat(pid);
  return process && process->state != 'Z' && process->state != 'X';
}

RunningCommand::RunningCommand(std::vector<std::string> arguments,
                               std::vector<std::string> environment)
    : out_(make_file()), err_(make_file()), pid_(::fork()) {
  if (pid_ < 0) throw_errno("fork");
  if (pid_ == 0) become(std::move(arguments), std::move(environment), out_.get(), err_.get());
}

RunningCommand::~RunningCommand() { wait(std::chrono::milliseconds(0)); }

std::string RunningCommand::out() const { return contents_of(out_); }
std::string RunningCommand::err() const { return contents_of(err_); }

int RunningCommand::wait(std::chrono::milliseconds limit) {
  if (ended_) return 0;
  siginfo_t end{};
  const bool by_itself = soon(
      [&] {
        return ::waitid(P_PID, static_cast<id_t>(pid_), &end, WEXITED | WNOHANG | WNOWAIT) == 0 &&
               end.si_pid != 0;
      },
      limit);
  if (!by_itself) ::kill(pid_, SIGKILL);
  int status = 0;
  ::waitpid(pid_, &status, 0);
  ended_ = true;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

Finished run_command(std::vector<std::string> arguments, std::vector<std::string> environment) {
  RunningCommand command(std::move(arguments), std::move(environment));
  const int code = command.wait();
  return {code, command.out(), command.err()};
}

}  // namespace lockstep::test
