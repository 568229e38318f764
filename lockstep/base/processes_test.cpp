// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/processes.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "lockstep/base/file_descriptor.h"

namespace lockstep::base::processes_test {
namespace {

std::string file_of(pid_t pid, const char* name) {
  return "/proc/" + std::to_string(pid) + "/" + name;
}

// A child that waits to be killed. This process has one thread, so fork() is safe.
class Child {
 public:
  Child() : pid_(::fork()) {
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) ::pause();
  }
  ~Child() { end(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }

  // Waits until it is a zombie.
  void kill() const {
    ::kill(pid_, SIGKILL);
    siginfo_t end{};
    ::waitid(P_PID, static_cast<id_t>(pid_), &end, WEXITED | WNOWAIT);
  }
  void end() {
    if (ended_) return;
    kill();
    ::waitpid(pid_, nullptr, 0);
    ended_ = true;
  }

 private:
  const pid_t pid_;
  bool ended_ = false;
};

TEST(ProcFile, IsReadToItsEnd) {
  std::ifstream in("/proc/self/limits");  // It does not change during the read.
  const std::string limits{std::istreambuf_iterator<char>(in), {}};
  EXPECT_FALSE(limits.empty());
  EXPECT_EQ(read_proc_file("/proc/self/limits"), limits);
  const auto maps = read_proc_file("/proc/self/maps");
  ASSERT_TRUE(maps);
  EXPECT_GT(maps->size(), 4096U) << "more than one read()";
  EXPECT_NE(maps->find("[stack]"), maps->npos);
}

TEST(ProcFile, ReportsNoErrorForAProcessThatEndsBetweenOpenAndRead) {
  Child child;
  const FileDescriptor stat(::open(file_of(child.pid(), "stat").c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(stat);
  child.end();
  EXPECT_EQ(read_proc_file(stat.get()), std::nullopt);
}

TEST(ProcFile, IsEmptyForAnEndedProcess) {
  Child child;
  const pid_t pid = child.pid();
  EXPECT_TRUE(read_proc_file(file_of(pid, "stat")));
  child.end();
  EXPECT_EQ(read_proc_file(file_of(pid, "stat")), std::nullopt);
  EXPECT_TRUE(names_in(file_of(pid, "task")).empty());
  EXPECT_FALSE(process_stat(pid));
  EXPECT_EQ(command_of(pid), "");
}

TEST(ProcFile, IsEmptyForAPathThatIsNotAFile) {
  EXPECT_EQ(read_proc_file("/proc/self"), std::nullopt) << "a folder";
  EXPECT_EQ(read_proc_file("/proc/no such file"), std::nullopt);
  EXPECT_TRUE(names_in("/proc/self/stat").empty());
}

TEST(ProcFile, ListsProcesses) {
  const Child child;
  const std::vector<pid_t> all = process_ids();
  for (const pid_t pid : {::getpid(), child.pid()})
    EXPECT_EQ(std::count(all.begin(), all.end(), pid), 1);
}

TEST(ProcessStat, DescribesALivingProcessAndAKilledOne) {
  const Child child;
  const auto living = process_stat(child.pid());
  ASSERT_TRUE(living);
  EXPECT_EQ(living->parent, ::getpid());
  EXPECT_EQ(living->wait_status, 0);
  EXPECT_GT(living->started, 0);
  EXPECT_GT(living->resident_bytes, 0);
  child.kill();
  const auto killed = process_stat(child.pid());
  ASSERT_TRUE(killed);
  EXPECT_EQ(killed->state, 'Z');
  EXPECT_EQ(killed->started, living->started);
  ASSERT_TRUE(killed->wait_status);
  EXPECT_TRUE(WIFSIGNALED(*killed->wait_status));
  EXPECT_EQ(WTERMSIG(*killed->wait_status), SIGKILL);
}

TEST(ProcessStat, ANameMayLookLikeFields) {
  const auto stat = parse_process_stat("12 (a) Z 1 (b) R 34 5 6\n");
  ASSERT_TRUE(stat);
  EXPECT_EQ(stat->state, 'R');
  EXPECT_EQ(stat->parent, 34);
  EXPECT_EQ(stat->resident_bytes, 0);
  EXPECT_FALSE(stat->started) << "the kernel has cut it off";
}

TEST(ProcessStat, OtherTextIsNone) {
  for (const char* text : {"", "12", "12 (a", "12 (a)", "12 (a) ", "12 (a) R", "12 (a) R x", "a)"})
    EXPECT_FALSE(parse_process_stat(text)) << text;
}

TEST(Command, HasASpaceBetweenArguments) {
  const std::string command = command_of(::getpid());
  EXPECT_NE(command.find("base_test"), command.npos) << command;
  EXPECT_EQ(command.find('\0'), command.npos);
}

TEST(SocketPeer, IsWhoMadeTheOtherEnd) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const FileDescriptor mine(ends[0]);
  const FileDescriptor other(ends[1]);
  const auto peer = peer_of(mine.get());
  ASSERT_TRUE(peer);
  EXPECT_EQ(peer->process, ::getpid());
  EXPECT_EQ(peer->user, ::geteuid());
}

TEST(SocketPeer, IsNobodyForATcpSocket) {
  const FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const auto peer = peer_of(socket.get());
  ASSERT_TRUE(peer);
  EXPECT_EQ(peer->process, 0);
  EXPECT_EQ(peer->user, static_cast<uid_t>(-1));
}

TEST(SocketPeer, IsNothingForAFile) {
  const FileDescriptor file(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_FALSE(peer_of(file.get()));
  EXPECT_FALSE(peer_of(-1));
}

}  // namespace
}  // namespace lockstep::base::processes_test
