// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/descendants.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/base/file_descriptor.h"
#include "tests/ranks.h"

namespace lockstep::descendants_test {
namespace {

// Runs `body` in a process that adopts orphans. This process has one thread, so fork() is safe.
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

// read() fails for a process that is reaped after its file was opened. It also fails for a folder.
TEST(Descendants, AProcessThatCannotBeReadIsNoChild) {
  const test::ScratchDirectory proc;
  const auto process = [&](int pid) { return proc.path() / std::to_string(pid); };
  std::filesystem::create_directories(process(7) / "stat");
  std::filesystem::create_directories(process(8));
  std::ofstream(process(8) / "stat") << "8 (child) S " << ::getpid() << " 8 8 0";
  std::filesystem::create_directories(process(9));
  EXPECT_EQ(children(proc.path()), std::vector<pid_t>{8});
}

// Starts a child that starts short-lived processes until it is killed.
void start_churn() {
  if (::fork() != 0) return;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (;;) {
    const pid_t pid = ::fork();
    if (pid == 0) ::_exit(0);
    ::waitpid(pid, nullptr, 0);
  }
}

TEST(Descendants, AreListedWhileProcessesOfOthersEnd) {
  constexpr std::size_t churning = 3;
  const int code = code_of([]() noexcept {
    for (std::size_t i = 0; i < churning; ++i) start_churn();
    for (int i = 0; i < 40; ++i)
      if (children().size() != churning) return 1;
    return end_descendants(std::chrono::seconds(10)) ? 0 : 2;
  });
  EXPECT_EQ(code, 0);
}

TEST(Descendants, NoneAtAllIsNoTrouble) {
  EXPECT_EQ(code_of([] { return end_descendants(std::chrono::seconds(1)) ? 0 : 1; }), 0);
}

}  // namespace
}  // namespace lockstep::descendants_test
