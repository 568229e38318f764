// SPDX-License-Identifier: Apache-2.0
#include "tools/doctor/child.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/time.h"

extern char** environ;

namespace lockstep::doctor {
namespace {

std::vector<char*> pointers_to(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (const std::string& each : texts) pointers.push_back(const_cast<char*>(each.c_str()));
  return pointers;
}

pid_t start(const std::vector<std::string>& arguments, const std::vector<std::string>& variables,
            int out) {
  std::vector<char*> pointers = pointers_to(arguments);
  pointers.push_back(nullptr);
  std::vector<char*> environment = pointers_to(variables);
  for (char** variable = environ; *variable != nullptr; ++variable)
    environment.push_back(*variable);
  environment.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, out, STDOUT_FILENO);
  ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t pid = 0;
  const int error =
      ::posix_spawn(&pid, pointers[0], &actions, nullptr, pointers.data(), environment.data());
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw_errno("starting " + arguments[0], error);
  return pid;
}

int milliseconds_until(Deadline deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  return static_cast<int>(std::max<std::int64_t>(0, left.count()));
}

// Returns false when the deadline came before the end.
bool read_all(int from, std::string& text, Deadline deadline) {
  std::array<char, 4096> buffer;
  while (true) {
    pollfd entry{from, POLLIN, 0};
    const int ready = ::poll(&entry, 1, milliseconds_until(deadline));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return false;
    const ssize_t count = ::read(from, buffer.data(), buffer.size());
    if (count <= 0) return true;
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
}

std::string describe_end(int status) {
  if (WIFSIGNALED(status))
    return fmt::format("was ended by signal {} ({})", WTERMSIG(status),
                       ::strsignal(WTERMSIG(status)));
  if (WEXITSTATUS(status) != 0) return fmt::format("ended with exit code {}", WEXITSTATUS(status));
  return {};
}

}  // namespace

Answer ask(const std::vector<std::string>& arguments, std::chrono::milliseconds limit,
           const std::vector<std::string>& variables) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw_errno("pipe");
  const FileDescriptor reading(ends[0]);
  FileDescriptor writing(ends[1]);
  const pid_t pid = start(arguments, variables, writing.get());
  writing = FileDescriptor();
  Answer answer;
  const bool ended = read_all(reading.get(), answer.out, in(limit));
  if (!ended) ::kill(pid, SIGKILL);
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
  answer.end =
      ended ? describe_end(status) : fmt::format("did not end within {} s", limit.count() / 1000);
  return answer;
}

}  // namespace lockstep::doctor
