// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/process.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/file_descriptor.h"
#include "tests/ranks.h"

namespace lockstep::launch::process_test {
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
  EXPECT_FALSE(process.wait_for_exec());
  EXPECT_EQ(code_of(process), 7);
}

TEST(Process, ReportsWhyAProgramCannotStart) {
  const test::ScratchDirectory scratch;
  const std::string file = scratch.path() / "not a program";
  std::ofstream(file) << "hello";
  std::filesystem::permissions(file, std::filesystem::perms::owner_all);
  for (const auto& [program, expected] :
       {std::pair<std::string, int>{"/no/such/program", ENOENT}, {"/", EACCES}, {file, ENOEXEC}}) {
    Process process({.program = program, .arguments = {"x"}, .environment = {}});
    const StartFailure failure = process.wait_for_exec();
    EXPECT_STREQ(failure.function, "execve");
    EXPECT_EQ(failure.error, expected) << program;
    EXPECT_TRUE(failure.is_of_program()) << program;
    EXPECT_EQ(code_of(process), 127);
  }
}

#ifdef SYS_dup2
constexpr long system_dup2 = SYS_dup2;
#else
constexpr long system_dup2 = SYS_dup3;  // AArch64 has only this one.
#endif

// From now on `call` fails with EPERM here and in children, as in a container.
void refuse(long call) {
  const auto number = static_cast<unsigned>(call);
  sock_filter steps[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{.len = std::size(steps), .filter = steps};
  const bool done = ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
                    ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
  if (!done) ::_exit(3);
}

// 0 if starting a program fails as expected.
int start_refused(long call, const char* function) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (call == SYS_setpgid && ::nice(1) != 1) ::_exit(4);
    refuse(call);
    Process process(shell("exit 0"));
    const StartFailure failure = process.wait_for_exec();
    const bool is_named = failure && std::string_view(failure.function) == function &&
                          failure.error == EPERM && !failure.is_of_program();
    ::_exit(is_named ? 0 : 2);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(Process, NamesTheCallThatTheSystemRefuses) {
  if (::getpriority(PRIO_PROCESS, 0) == 0) {
    EXPECT_EQ(start_refused(SYS_setsid, "setsid"), 0);
    EXPECT_EQ(start_refused(SYS_setpgid, "setpgid"), 0);
  }
  EXPECT_EQ(start_refused(system_dup2, "dup2"), 0);
}

TEST(Process, LeadsAGroupAndASessionOfItsOwn) {
  Process process(shell("sleep 1000"));
  ASSERT_FALSE(process.wait_for_exec());
  EXPECT_EQ(::getpgid(process.pid()), process.pid());
  EXPECT_EQ(::getsid(process.pid()) == process.pid(), ::getpriority(PRIO_PROCESS, 0) == 0);
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
  EXPECT_FALSE(process.wait_for_exec());
  ::signal(SIGPIPE, handler);
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  EXPECT_EQ(code_of(process), 0);
}

TEST(Process, HasTheLimitOfOpenFilesThatItIsGiven) {
  Command command = shell("test $(ulimit -S -n) = 77");
  command.open_files = 77;
  Process process(command);
  EXPECT_FALSE(process.wait_for_exec());
  EXPECT_EQ(code_of(process), 0);
}

TEST(Process, TakesItsMemoryFromTheNodesItIsGiven) {
  if (::syscall(SYS_set_mempolicy, 0, nullptr, 0) != 0)
    GTEST_SKIP() << "this kernel has no NUMA nodes, or lets nobody choose them";
  Command command = shell("grep -q ' prefer[ a-z()]*:0 ' /proc/self/numa_maps");
  command.memory_nodes = {0};
  Process process(command);
  EXPECT_FALSE(process.wait_for_exec());
  EXPECT_EQ(code_of(process), 0);
}

TEST(Process, RunsThoughTheNodesItIsGivenAreNotThere) {
  Command command = shell("exit 7");
  command.memory_nodes = {63};
  Process process(command);
  EXPECT_FALSE(process.wait_for_exec());
  EXPECT_EQ(code_of(process), 7);
}

// This process has one thread, so fork() is safe.
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
  // The other end closes when the last of them has ended.
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

// read() fails for a process that is reaped after its file was opened, and for a folder.
TEST(Descendants, AProcessThatCannotBeReadIsNoChild) {
  const test::ScratchDirectory proc;
  const auto process = [&](int pid) { return proc.path() / std::to_string(pid); };
  std::filesystem::create_directories(process(7) / "stat");
  std::filesystem::create_directories(process(8));
  std::ofstream(process(8) / "stat") << "8 (child) S " << ::getpid() << " 8 8 0";
  std::filesystem::create_directories(process(9));
  EXPECT_EQ(children(proc.path()), std::vector<pid_t>{8});
}

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
}  // namespace lockstep::launch::process_test
