// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/descendants.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <functional>
#include <string>

#include "lockstep/comm/host/file_descriptor.h"

namespace lockstep {
namespace {

// Runs `body` in a process that adopts orphans. No thread but ours runs, so fork() is safe.
int code_of(const std::function<int()>& body) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    sigset_t child;
    ::sigemptyset(&child);
    ::sigaddset(&child, SIGCHLD);
    ::sigprocmask(SIG_BLOCK, &child, nullptr);
    adopt_orphans();
    ::_exit(body());
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

void start(const char* script) {
  if (::fork() != 0) return;
  ::execl("/bin/sh", "sh", "-c", script, nullptr);
  ::_exit(127);
}

TEST(Descendants, AreAllEndedHoweverTheyTriedToEscape) {
  // All of them inherit `held`: its other end closes when the last of them is gone.
  std::array<int, 2> held{};
  ASSERT_EQ(::pipe(held.data()), 0);
  const FileDescriptor end(held[0]);
  const int code = code_of([] {
    start("sleep 1000 & setsid sleep 1000 & (setsid sh -c 'sleep 1000 & sleep 1000') & sleep 1000");
    start("trap '' TERM; sh -c 'sh -c \"sh -c \\\"sleep 1000; true\\\"; true\"; true'; true");
    start("setsid sh -c 'sleep 1000 & exit' & exit");
    start("kill -STOP $$");
    ::usleep(300'000);
    return end_descendants(std::chrono::seconds(10)) ? 0 : 1;
  });
  EXPECT_EQ(code, 0);
  ::close(held[1]);
  ::fcntl(end.get(), F_SETFL, O_NONBLOCK);
  char byte = 0;
  EXPECT_EQ(::read(end.get(), &byte, 1), 0) << "somebody still lives";
}

TEST(Descendants, NoneAtAllIsNoTrouble) {
  EXPECT_EQ(code_of([] { return end_descendants(std::chrono::seconds(1)) ? 0 : 1; }), 0);
}

}  // namespace
}  // namespace lockstep
