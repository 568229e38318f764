// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/launch/status.h"
#include "tests/rigs/command.h"
#include "tests/serving_status.h"
#include "tools/top/screen.h"

namespace lockstep::test::lockstep_top_test {
namespace {

using tools::draw;

JobStatus example(char first = 'a') {
  JobStatus job{.job_id = own_id(first), .program = "./train --epochs \033[2J5"};
  job.host = "node3";
  job.world_size = 2;
  job.restarts = 1;
  job.state = "running";
  job.seconds = 3723.9;
  job.ranks.push_back({.rank = 0,
                       .pid = 4241,
                       .state = "waiting",
                       .step = 812,
                       .shares = {{"forward", 0.25}, {"backward", 0.5}, {"wait", 0.25}},
                       .latest_rank = 1,
                       .steps_per_second = 10.25,
                       .steps = 800,
                       .seconds = {{"forward", 20}, {"backward", 40}, {"wait", 20}},
                       .waited_for = {{"1", 20}},
                       .memory = 3LL << 29});
  job.ranks.push_back({.rank = 1,
                       .pid = 4242,
                       .state = "running",
                       .step = 812,
                       .shares = {{"data", 0.25}, {"forward", 0.25}, {"backward", 0.5}},
                       .steps_per_second = 10.25,
                       .steps = 800,
                       .seconds = {{"data", 20}, {"forward", 20}, {"backward", 40}}});
  return job;
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST(LockstepTop, DrawsWhereTheTimeGoes) {
  const std::string text = draw({example()}, {.columns = 100});
  const auto lines = lines_of(text);
  ASSERT_EQ(lines.size(), 6U) << text;
  EXPECT_TRUE(has(lines[0], "  node3  running  up 1:02:03  restarts 1  ./train --epochs  [2J5"))
      << text;
  EXPECT_TRUE(has(lines[2], "   0 waiting        812     10.2  ffff")) << text;
  EXPECT_TRUE(has(lines[2], "w  1 (25 %)      1.5 GiB")) << text;
  EXPECT_TRUE(has(lines[3], "  dddd")) << text;
  EXPECT_EQ(lines[4], "others waited 25 ms a step (25 %) for rank 1, of which 25 in data");
  EXPECT_TRUE(has(lines[5], "d=data f=forward b=backward r=reduce w=wait")) << text;
}

TEST(LockstepTop, FitsEveryTerminal) {
  for (const int columns : {1, 20, 30, 40, 60, 80, 200}) {
    const std::string text = draw({example()}, {.columns = columns});
    for (const std::string& line : lines_of(text))
      EXPECT_LE(line.size(), static_cast<std::size_t>(columns)) << text;
  }
  EXPECT_EQ(lines_of(draw({example(), example('b')}, {.columns = 80, .rows = 5})).size(), 5U);
}

TEST(LockstepTop, ABarIsAsLongWithOrWithoutColors) {
  const std::string plain = draw({example()}, {.columns = 100});
  const std::string colored = draw({example()}, {.columns = 100, .colors = true});
  EXPECT_FALSE(has(plain, "\033"));
  EXPECT_TRUE(has(colored, "\033[97;48;5;25mfff"));
  std::string without;
  for (std::size_t i = 0; i < colored.size(); ++i) {
    if (colored[i] == '\033')
      i = colored.find('m', i);
    else
      without += colored[i];
  }
  const std::size_t ranks = plain.find("others waited");
  EXPECT_EQ(without.substr(0, ranks), plain.substr(0, ranks));
}

TEST(LockstepTop, PrintsOnceWithoutATerminal) {
  const ServingStatus agent(example());
  Finished top{};
  soon([&] {  // The agent's thread may stand still for a second.
    top = run_command({LOCKSTEP, "top", own_id('a')});
    return !has(top.out, no_answer);
  });
  EXPECT_EQ(top.code, 0) << top.err;
  EXPECT_EQ(top.out, draw({example()}, {.columns = 100}));
}

TEST(LockstepTop, AJobThatIsNotThereIsExitCode1) {
  const Finished top = run_command({LOCKSTEP, "top", "--once", "no-such-job"});
  EXPECT_EQ(top.code, 1);
  EXPECT_EQ(top.out, "");
  EXPECT_EQ(top.err, "lockstep top: no job no-such-job of this user runs on this host\n");
  EXPECT_EQ(run_command({LOCKSTEP, "top", "--every", "0"}).code, 64);
}

class OnTerminal {
 public:
  explicit OnTerminal(const std::string& job) {
    winsize size{.ws_row = 24, .ws_col = 80, .ws_xpixel = 0, .ws_ypixel = 0};
    const std::array<const char*, 6> arguments{LOCKSTEP,  "top", job.c_str(),
                                               "--every", "0.1", nullptr};
    pid_ = ::forkpty(&terminal_, nullptr, nullptr, &size);
    if (pid_ == 0) {
      ::execv(LOCKSTEP, const_cast<char* const*>(arguments.data()));
      ::_exit(127);
    }
  }
  ~OnTerminal() {
    if (pid_ > 0) ::kill(pid_, SIGKILL);
    ::close(terminal_);
  }
  OnTerminal(const OnTerminal&) = delete;
  OnTerminal& operator=(const OnTerminal&) = delete;

  void press(char key) const { EXPECT_EQ(::write(terminal_, &key, 1), 1); }
  void signal(int number) const { ::kill(pid_, number); }

  std::string shown_with(const std::string& part) {
    soon([&] {
      pollfd entry{terminal_, POLLIN, 0};
      if (::poll(&entry, 1, 100) <= 0) return false;
      std::array<char, 4096> buffer;
      const ssize_t length = ::read(terminal_, buffer.data(), buffer.size());
      if (length > 0) shown_.append(buffer.data(), static_cast<std::size_t>(length));
      return length <= 0 || has(shown_, part);
    });
    return shown_;
  }

  bool stops() const {
    int status = 0;
    return ::waitpid(pid_, &status, WUNTRACED) == pid_ && WIFSTOPPED(status);
  }

  int exit_code() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000;
  }

 private:
  int terminal_ = -1;
  pid_t pid_ = 0;
  std::string shown_;
};

constexpr const char* leaves_screen = "\033[?1049l";

TEST(LockstepTop, IsEndedByAKey) {
  const ServingStatus agent(example());
  OnTerminal top(own_id('a'));
  EXPECT_TRUE(has(top.shown_with("RANK"), "\033[?1049h"));
  top.press('q');
  EXPECT_TRUE(has(top.shown_with(leaves_screen), leaves_screen));
  EXPECT_EQ(top.exit_code(), 0);
}

TEST(LockstepTop, GivesTheTerminalBackAfterASignal) {
  const ServingStatus agent(example());
  for (const int number : {SIGTERM, SIGQUIT}) {
    OnTerminal top(own_id('a'));
    top.shown_with("RANK");
    top.signal(number);
    EXPECT_TRUE(has(top.shown_with(leaves_screen), leaves_screen)) << number;
    EXPECT_EQ(top.exit_code(), 0) << number;
  }
}

TEST(LockstepTop, GivesTheTerminalBackWhileItIsSuspended) {
  const ServingStatus agent(example());
  OnTerminal top(own_id('a'));
  top.shown_with("RANK");
  top.press('\032');  // Ctrl-Z.
  EXPECT_TRUE(has(top.shown_with(leaves_screen), leaves_screen));
  EXPECT_TRUE(top.stops());
  top.signal(SIGCONT);
  const std::string again = std::string(leaves_screen) + "\033[?1049h";
  EXPECT_TRUE(has(top.shown_with(again), again));
  top.press('q');
  EXPECT_EQ(top.exit_code(), 0);
}

TEST(LockstepTop, EndsWithItsJob) {
  std::optional<ServingStatus> agent(std::in_place, example());
  OnTerminal top(own_id('a'));
  top.shown_with("RANK");
  agent.reset();
  EXPECT_TRUE(has(top.shown_with("no job "), leaves_screen));
  EXPECT_EQ(top.exit_code(), 1);
}

}  // namespace
}  // namespace lockstep::test::lockstep_top_test
