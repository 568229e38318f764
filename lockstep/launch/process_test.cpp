// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

#include "tests/ranks.h"

namespace lockstep::process_test {
namespace {

Command shell(const std::string& script) {
  return {.program = "/bin/sh",
          .arguments = {"sh", "-c", script},
          .environment = {"PATH=/usr/bin:/bin"}};
}

int code_of(Process& process) {
  int status = 0;
  ::waitpid(process.pid(), &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(Process, RunsAProgram) {
  Process process(shell("exit 7"));
  EXPECT_EQ(process.wait_for_exec(), 0);
  EXPECT_EQ(code_of(process), 7);
}

TEST(Process, SaysWhyAProgramDoesNotRun) {
  const test::ScratchDirectory scratch;
  const std::string file = scratch.path() / "not a program";
  std::ofstream(file) << "hello";
  std::filesystem::permissions(file, std::filesystem::perms::owner_all);
  for (const auto& [program, expected] :
       {std::pair<std::string, int>{"/no/such/program", ENOENT}, {"/", EACCES}, {file, ENOEXEC}}) {
    Process process({.program = program, .arguments = {"x"}, .environment = {}});
    EXPECT_EQ(process.wait_for_exec(), expected) << program;
    EXPECT_EQ(code_of(process), 127);
  }
}

TEST(Process, LeadsAGroupOfItsOwn) {
  Process process(shell("sleep 1000"));
  ASSERT_EQ(process.wait_for_exec(), 0);
  EXPECT_EQ(::getpgid(process.pid()), process.pid());
  ::kill(-process.pid(), SIGTERM);
  EXPECT_EQ(code_of(process), 128 + SIGTERM);
}

TEST(Process, InheritsNoBlockedOrIgnoredSignal) {
  sigset_t all, before;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, &before);
  const auto handler = ::signal(SIGPIPE, SIG_IGN);
  Process process(
      shell("grep -q 'SigBlk:.*[1-9a-f]' /proc/self/status && exit 1;"
            "grep -q 'SigIgn:.*[1-9a-f]' /proc/self/status && exit 2; exit 0"));
  EXPECT_EQ(process.wait_for_exec(), 0);
  ::signal(SIGPIPE, handler);
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  EXPECT_EQ(code_of(process), 0);
}

TEST(Process, HasTheLimitOfOpenFilesThatItIsGiven) {
  Command command = shell("test $(ulimit -S -n) = 77");
  command.open_files = 77;
  Process process(command);
  EXPECT_EQ(process.wait_for_exec(), 0);
  EXPECT_EQ(code_of(process), 0);
}

TEST(Process, TakesItsMemoryFromTheNodesItIsGiven) {
  if (::syscall(SYS_set_mempolicy, 0, nullptr, 0) != 0)
    GTEST_SKIP() << "this kernel has no NUMA nodes, or lets nobody choose them";
  Command command = shell("grep -q ' prefer[ a-z()]*:0 ' /proc/self/numa_maps");
  command.memory_nodes = {0};
  Process process(command);
  EXPECT_EQ(process.wait_for_exec(), 0);
  EXPECT_EQ(code_of(process), 0);
}

TEST(Process, RunsThoughTheNodesItIsGivenAreNotThere) {
  Command command = shell("exit 7");
  command.memory_nodes = {63};
  Process process(command);
  EXPECT_EQ(process.wait_for_exec(), 0);
  EXPECT_EQ(code_of(process), 7);
}

}  // namespace
}  // namespace lockstep::process_test
