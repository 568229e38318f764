// `lockstep run --on-failure continue`.

// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/time.h"
#include "lockstep/launch/rendezvous.h"
#include "tests/ranks.h"
#include "tests/rigs/command.h"

namespace lockstep::tools::continue_test {
namespace {

using namespace std::chrono_literals;
using test::Finished;
using test::is_running;
using test::run_command;
using test::RunningCommand;
using test::ScratchDirectory;
using test::soon;
using Arguments = std::vector<std::string>;

std::string new_directory() {
  static const ScratchDirectory scratch;
  static int made = 0;
  const std::filesystem::path path = scratch.path() / std::to_string(made++);
  std::filesystem::create_directory(path);
  return path;
}

// In the shell script, $K is the number of the rank's earlier starts. Ranks wait for each other
// with `mark NAME` and `await NAME`. `await_end NAME` waits until the launcher has seen the end of
// the rank that marked NAME.
Arguments ranks_of_script(int ranks, const std::string& script, const Arguments& options = {},
                          const std::string& marks = new_directory()) {
  Arguments arguments{LOCKSTEP_RUN, "-n", std::to_string(ranks), "--on-failure", "continue"};
  arguments.insert(arguments.end(), options.begin(), options.end());
  for (const char* word : {"/bin/sh", "-c"}) arguments.emplace_back(word);
  arguments.push_back("M=" + marks +
                      "; mark() { echo $$ > $M/.$1; mv $M/.$1 $M/$1; }; "
                      "await() { until [ -e $M/$1 ]; do sleep 0.01; done; }; "
                      "await_end() { await $1; while kill -0 $(cat $M/$1); do sleep 0.01; done; } "
                      "2> /dev/null; K=${LOCKSTEP_INCARNATION:-0}; " +
                      script);
  return arguments;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != text.npos;
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}

std::vector<std::string> sorted_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

std::string content(const std::filesystem::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<pid_t> pids_in(const std::string& text) {
  std::vector<pid_t> pids;
  for (const std::string& line : sorted_lines(text))
    pids.push_back(std::stoi(line.substr(line.rfind(' ') + 1)));
  return pids;
}

TEST(LockstepRunContinue, StartsALostRankAgainInItsPlaceAndSucceeds) {
  const Finished run = run_command(
      ranks_of_script(
          3,
          "echo $RANK/$LOCAL_RANK/$WORLD_SIZE/$LOCKSTEP_ATTEMPT start "
          "${LOCKSTEP_INCARNATION-none} $LOCKSTEP_ON_FAILURE; "
          "[ $RANK$K = 10 ] && kill -9 $$; [ $RANK$K = 11 ] && mark again; await again"),
      {"LOCKSTEP_INCARNATION=7"});
  EXPECT_EQ(run.code, 0);
  EXPECT_EQ(sorted_lines(run.out),
            (Arguments{"[0] 0/0/3/0 start none continue", "[1] 1/1/3/0 start 1 continue",
                       "[1] 1/1/3/0 start none continue", "[2] 2/2/3/0 start none continue"}));
  EXPECT_TRUE(contains(run.err,
                       "lockstep run: rank 1 was killed by signal 9 (SIGKILL)\n"
                       "lockstep run: caused by rank 1 (pid "))
      << run.err;
  EXPECT_TRUE(contains(run.err,
                       ")\nlockstep run: 2 ranks continue; starting rank 1 again "
                       "(replacement 1 of 30)\nlockstep run: the other ranks survived 1 "
                       "failure; replacements started: 1\n"))
      << run.err;
  EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 4) << run.err;
}

TEST(LockstepRunContinue, LimitsTheReplacementsAndPausesBetweenThem) {
  const Finished run = run_command(ranks_of_script(
      2,
      "echo $RANK $K; [ $RANK$K = 13 ] && mark last; [ $RANK = 1 ] && exit 5; await_end last; "
      "sleep 1; echo not ended",
      {"--max-restarts", "3"}));
  EXPECT_EQ(run.code, 0);
  EXPECT_EQ(sorted_lines(run.out),
            (Arguments{"[0] 0 0", "[0] not ended", "[1] 1 0", "[1] 1 1", "[1] 1 2", "[1] 1 3"}));
  for (const char* line :
       {"again (replacement 1 of 3)\n", "again in 0.1 s (replacement 2 of 3)\n",
        "again in 0.2 s (replacement 3 of 3)\n",
        "1 rank continues; rank 1 is not started again: all 3 replacements on this host are used "
        "up\n",
        "survived 4 failures; replacements started: 3\n"})
    EXPECT_EQ(count(run.err, line), 1U) << line << run.err;
}

TEST(LockstepRunContinue, EndsWithTheFirstFailureIfNoRankSucceeds) {
  const Finished run = run_command(ranks_of_script(
      2, "if [ $RANK = 0 ]; then mark first; else await_end first; fi; exit $((3 + RANK))",
      {"--max-restarts", "0"}));
  EXPECT_EQ(run.code, 3);
  EXPECT_TRUE(contains(run.err, "lockstep run: rank 0 exited with code 3\n")) << run.err;
  EXPECT_TRUE(contains(run.err, "; then rank 1 failed too; exit code 3\nlockstep run: to do: "))
      << run.err;
  EXPECT_FALSE(contains(run.err, "survived")) << run.err;
}

TEST(LockstepRunContinue, RestartsAllRanksIfNoneIsLeft) {
  const Finished run = run_command(
      ranks_of_script(2,
                      "echo $LOCKSTEP_ATTEMPT; [ $LOCKSTEP_ATTEMPT = 1 ] || exit 1; "
                      "[ $RANK$K = 10 ] && exit 2; [ $RANK$K = 11 ] && mark again; await again",
                      {"--max-restarts", "2", "--max-restart-delay", "0"}));
  EXPECT_EQ(run.code, 0) << run.err;
  // Either rank may use both replacements of the first attempt.
  EXPECT_EQ(count(run.out, "] 0\n"), 4U) << run.out;
  EXPECT_EQ(count(run.out, "[0] 1\n"), 1U) << run.out;
  EXPECT_EQ(count(run.out, "[1] 1\n"), 2U) << run.out;
}

TEST(LockstepRunContinue, StartsNoRankAfterAnotherHasSucceeded) {
  const Finished run = run_command(ranks_of_script(
      2, "echo $RANK $K; [ $RANK = 1 ] || { mark done; exit 0; }; await_end done; exit 4"));
  EXPECT_EQ(run.code, 0);
  EXPECT_EQ(sorted_lines(run.out), (Arguments{"[0] 0 0", "[1] 1 0"}));
  EXPECT_TRUE(contains(run.err,
                       "rank 1 is not started again: a rank of this host has ended with "
                       "code 0\n"))
      << run.err;
}

TEST(LockstepRunContinue, ARankThatIsPreemptedHasLeftInOrder) {
  const Finished some = run_command(ranks_of_script(
      2, "echo $RANK $K; [ $RANK = 1 ] || { mark preempted; exit 75; }; await_end preempted"));
  EXPECT_EQ(some.code, 0);
  EXPECT_EQ(sorted_lines(some.out), (Arguments{"[0] 0 0", "[1] 1 0"}));
  EXPECT_EQ(some.err, "");
  EXPECT_EQ(run_command(ranks_of_script(2, "exit 75")).code, exit_preempted);
}

// A signal has ended the last pause of a rank.
void expect_no_start_after_the_last_pause(const RunningCommand& run, int rank) {
  const std::string number = std::to_string(rank);
  EXPECT_EQ(count(run.out(), "[" + number + "] "),
            count(run.err(), "starting rank " + number + " again"))
      << run.out() << run.err();
}

TEST(LockstepRunContinue, ASignalEndsAllRanksAlsoDuringAPause) {
  RunningCommand run(ranks_of_script(
      3, "echo $$; [ $RANK = 1 ] && exit 6; trap 'exit 0' TERM; while :; do sleep 0.05; done",
      {"--max-restarts", "1000"}));
  ASSERT_TRUE(soon([&] { return contains(run.err(), "again in 3.2 s"); })) << run.err();
  const auto start = Clock::now();
  ::kill(run.pid(), SIGTERM);
  EXPECT_EQ(run.wait(), 128 + SIGTERM);
  EXPECT_LT(seconds_since(start), 9) << "the timeout is 10 seconds";
  expect_no_start_after_the_last_pause(run, 1);
  EXPECT_TRUE(contains(run.err(), "lockstep run: stopped by SIGTERM; exit code 143\n"))
      << run.err();
  for (const pid_t pid : pids_in(run.out())) EXPECT_FALSE(is_running(pid)) << pid;
}

TEST(LockstepRunContinue, ASignalEndsAJobWhoseOnlyRankWaitsToStart) {
  RunningCommand run(ranks_of_script(1, "echo start; exit 6"));
  ASSERT_TRUE(soon([&] { return contains(run.err(), "again in 1.6 s"); })) << run.err();
  ::kill(run.pid(), SIGTERM);
  EXPECT_EQ(run.wait(), 128 + SIGTERM);
  expect_no_start_after_the_last_pause(run, 0);
}

TEST(LockstepRunContinue, ChildrenOfALostRankDoNotOutliveIt) {
  const Finished run = run_command(
      ranks_of_script(
          2,
          "if [ $RANK$K = 10 ]; then sleep 100 & echo child $!; echo $! > \"$CHILD\"; kill -9 $$; "
          "fi; "
          "[ $RANK = 0 ] && await checked; [ $RANK$K = 11 ] && { N=0; "
          "runs() { grep -q '^State:.[^Z]' /proc/$(cat \"$CHILD\")/status; }; "
          "while runs && [ $N -lt 500 ]; do sleep 0.01; N=$((N + 1)); done; "
          "runs && echo child runs; mark checked; }; exit 0"),
      {"CHILD=" + std::string(ScratchDirectory().path()) + ".child"});
  EXPECT_EQ(run.code, 0);
  EXPECT_TRUE(contains(run.out, "[1] child ")) << run.out;
  EXPECT_FALSE(contains(run.out, "child runs")) << run.out;
}

TEST(LockstepRunContinue, KillsAStoppedRankAfterAnotherHasSucceeded) {
  const auto start = Clock::now();
  const Finished run = run_command(ranks_of_script(2, "[ $RANK = 1 ] && kill -STOP $$; exit 0"));
  EXPECT_EQ(run.code, 0);
  EXPECT_GE(seconds_since(start), 5);
  EXPECT_TRUE(contains(run.err,
                       "lockstep run: rank 1 is stopped, and another rank has ended with "
                       "code 0: killed\n"))
      << run.err;
  EXPECT_FALSE(contains(run.err, "survived")) << "it is no failure";
}

TEST(LockstepRunContinue, EachStartHasItsOwnLogFiles) {
  const ScratchDirectory scratch;
  const Finished run = run_command(ranks_of_script(
      2,
      "echo out $RANK.$K; echo err $RANK.$K >&2; case $RANK$K in 1[01]) echo "
      "\"{\\\"message\\\": \\\"broken $K\\\"}\" > $TORCHELASTIC_ERROR_FILE; exit 9; "
      "esac; [ $RANK = 1 ] && mark third; await third",
      {"--log-dir", scratch.path()}));
  EXPECT_EQ(run.code, 0);
  const std::filesystem::path attempt =
      std::filesystem::directory_iterator(scratch.path())->path() / "attempt_0";
  for (const auto& [folder, name] : {std::pair{"0", "0.0"},
                                     {"1", "1.0"},
                                     {"1/incarnation_1", "1.1"},
                                     {"1/incarnation_2", "1.2"}}) {
    EXPECT_EQ(content(attempt / folder / "stdout.log"), std::string("out ") + name + "\n");
    EXPECT_EQ(content(attempt / folder / "stderr.log"), std::string("err ") + name + "\n");
  }
  EXPECT_TRUE(contains(content(attempt / "1/error.json"), "broken 0"));
  EXPECT_TRUE(contains(content(attempt / "1/incarnation_1/error.json"), "broken 1"));
  for (const char* message : {"broken 0", "broken 1"})
    EXPECT_EQ(count(run.err, std::string("rank 1 exited with code 9: ") + message), 1U) << run.err;
}

TEST(LockstepRunContinue, OnlyTheFirstStartOfRank0HasStdin) {
  const ScratchDirectory scratch;
  const Finished run = run_command(
      {"/bin/sh", "-c",
       "printf 'one\\ntwo\\n' | " LOCKSTEP_RUN
       " -n 2 --on-failure continue /bin/sh -c 'K=${LOCKSTEP_INCARNATION:-0}; read line; "
       "echo start $K $line; [ $RANK$K = 00 ] && exit 1; [ $RANK$K = 01 ] && : > \"$AGAIN\"; "
       "until [ -e \"$AGAIN\" ]; do sleep 0.01; done'"},
      {"AGAIN=" + (scratch.path() / "again").string()});
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(sorted_lines(run.out), (Arguments{"[0] start 0 one", "[0] start 1", "[1] start 0"}));
}

TEST(LockstepRunContinue, TheStoreOfASingleHostOutlivesReplacements) {
  const Finished run = run_command(ranks_of_script(
      2,
      "echo $LOCKSTEP_STORE; [ $RANK$K = 10 ] && exit 1; [ $RANK = 1 ] && mark again; "
      "await again"));
  const Arguments lines = sorted_lines(run.out);
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_TRUE(lines[0].starts_with("[0] 127.0.0.1:")) << run.out;
  EXPECT_EQ(lines[1].substr(4), lines[0].substr(4));
  EXPECT_EQ(lines[2], lines[1]);
  EXPECT_EQ(run_command({LOCKSTEP_RUN, "-n", "1", "/bin/sh", "-c",
                         "echo ${LOCKSTEP_STORE-none} ${LOCKSTEP_ON_FAILURE-none}"})
                .out,
            "[0] none none\n");
}

TEST(LockstepRunContinue, TheStatusShowsHowOftenARankStarted) {
  RunningCommand run(ranks_of_script(2, "[ $RANK$K = 10 ] && exit 1; echo $RANK $$; sleep 100"));
  ASSERT_TRUE(soon([&] { return sorted_lines(run.out()).size() == 2; }));
  const pid_t pid = pids_in(run.out()).at(1);
  std::string shown;
  EXPECT_TRUE(soon([&] {  // A launcher that stands still does not answer.
    bool found = false;
    shown = run_command({LOCKSTEP_STATUS, "--json"}).out;
    for (const auto& job : nlohmann::json::parse(shown))
      for (const auto& rank : job["ranks"])
        if (rank["pid"] == pid) {
          found = true;
          EXPECT_EQ(rank["rank"], 1);
          EXPECT_EQ(rank["incarnation"], 1);
          EXPECT_EQ(rank["state"], "starting");
        } else if (rank["pid"] == pids_in(run.out()).at(0)) {
          EXPECT_EQ(rank["incarnation"], 0);
        }
    return found;
  })) << shown;
  EXPECT_TRUE(soon([] { return contains(run_command({LOCKSTEP_STATUS}).out, "start 2"); }))
      << shown;
}

TEST(LockstepRunContinue, AProgramThatVanishedIsNotStartedAgain) {
  const ScratchDirectory scratch;
  const std::string program = scratch.path() / "program";
  // Rank 0 has opened the program before rank 1 removes it, and ends when the test has seen why.
  std::ofstream(program) << "#!/bin/sh\nawait() { until [ -e $0.$1 ]; do sleep 0.01; done; }\n"
                            "[ $RANK = 0 ] && { : > $0.runs; await seen; exit 0; }\n"
                            "await runs; rm -f $0; exit 1\n";
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  RunningCommand run({LOCKSTEP_RUN, "-n", "2", "--on-failure", "continue", program});
  EXPECT_TRUE(soon([&] {
    return contains(run.err(), "is not started again: its program cannot be executed any more\n");
  })) << run.err();
  std::ofstream(program + ".seen").flush();
  EXPECT_EQ(run.wait(), 0) << run.err();
  EXPECT_EQ(count(run.err(), "executing " + program), 1U) << run.err();
  EXPECT_EQ(count(run.err(), "replacement 1 of 20"), 1U) << run.err();
  EXPECT_EQ(run_command({LOCKSTEP_RUN, "-n", "2", "--on-failure", "continue", program}).code, 127);
}

class TwoHosts {
 public:
  explicit TwoHosts(const std::string& script, const Arguments& options = {}) {
    const std::string marks = new_directory();  // Hosts of a job have one command.
    for (int node = 0; node < 2; ++node) {
      Arguments own{"--nnodes",        "2",
                    "--node-rank",     std::to_string(node),
                    "--rdzv-endpoint", "127.0.0.1:" + std::to_string(port_.number())};
      own.insert(own.end(), options.begin(), options.end());
      hosts_.push_back(std::make_unique<RunningCommand>(ranks_of_script(2, script, own, marks)));
    }
  }
  RunningCommand& operator[](std::size_t host) { return *hosts_[host]; }

 private:
  const ReservedPort port_;
  std::vector<std::unique_ptr<RunningCommand>> hosts_;
};

TEST(LockstepRunContinue, OtherHostsGetNoReportOfARankThatStartsAgain) {
  TwoHosts hosts(
      "echo $RANK $K; [ $RANK$K = 30 ] && exit 1; [ $RANK$K = 31 ] && mark again; "
      "[ $RANK -lt 2 ] || await again");
  for (const std::size_t host : {0, 1}) EXPECT_EQ(hosts[host].wait(), 0) << hosts[host].err();
  EXPECT_EQ(sorted_lines(hosts[0].out()), (Arguments{"[0] 0 0", "[1] 1 0"}));
  EXPECT_EQ(sorted_lines(hosts[1].out()), (Arguments{"[2] 2 0", "[3] 3 0", "[3] 3 1"}));
  EXPECT_EQ(hosts[0].err(), "");
  EXPECT_TRUE(contains(hosts[1].err(), "1 rank continues; starting rank 3 again"))
      << hosts[1].err();
}

TEST(LockstepRunContinue, AHostWhoseRanksAllFailDoesNotEndTheOther) {
  TwoHosts hosts(
      "[ $RANK = 2 ] && { mark first; exit 7; }; [ $RANK = 3 ] && { await_end first; exit 8; }; "
      "sleep 1.5",
      {"--max-restarts", "0"});
  for (const std::size_t host : {0, 1}) EXPECT_EQ(hosts[host].wait(), 0) << hosts[host].err();
  EXPECT_TRUE(contains(hosts[0].err(), "rank 2 failed; other hosts have finished the job\n"))
      << hosts[0].err();
}

TEST(LockstepRunContinue, TheLossOfAHostDoesNotEndTheOther) {
  TwoHosts hosts("echo $RANK; [ $RANK -lt 2 ] || sleep 100; sleep 2");
  ASSERT_TRUE(soon([&] { return sorted_lines(hosts[1].out()).size() == 2; }));
  ::kill(hosts[1].pid(), SIGKILL);
  EXPECT_EQ(hosts[0].wait(), 0) << hosts[0].err();
  EXPECT_TRUE(contains(hosts[0].err(), " was lost; other hosts have finished the job\n"))
      << hosts[0].err();
}

TEST(LockstepRunContinue, TheLossOfTheHostWithTheStoreEndsTheJob) {
  TwoHosts hosts("echo $RANK; sleep 100");
  ASSERT_TRUE(soon([&] { return sorted_lines(hosts[1].out()).size() == 2; }));
  ::kill(hosts[0].pid(), SIGKILL);
  EXPECT_EQ(hosts[1].wait(), exit_unavailable) << hosts[1].err();
}

}  // namespace
}  // namespace lockstep::tools::continue_test
