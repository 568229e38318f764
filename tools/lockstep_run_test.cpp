// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "lockstep/base/error.h"
#include "lockstep/base/memory.h"
#include "lockstep/base/processes.h"
#include "lockstep/base/time.h"
#include "lockstep/job/fd_broker.h"
#include "lockstep/job/job_control_block.h"
#include "lockstep/job/store/tcp_socket.h"
#include "lockstep/launch/binding.h"
#include "lockstep/launch/rendezvous.h"
#include "tests/ranks.h"
#include "tests/rigs/command.h"

namespace lockstep::test::lockstep_run_test {
namespace {

using namespace std::chrono_literals;
using Arguments = std::vector<std::string>;

Arguments ranks_of_script(int ranks, const std::string& script, Arguments options = {}) {
  Arguments arguments{LOCKSTEP_RUN, "-n", std::to_string(ranks)};
  arguments.insert(arguments.end(), options.begin(), options.end());
  for (const char* word : {"/bin/sh", "-c"}) arguments.emplace_back(word);
  arguments.push_back(script);
  return arguments;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != text.npos;
}

std::vector<std::string> sorted_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

std::map<std::string, std::string> variables_in(const std::string& text, int rank = 0) {
  const std::string prefix = std::string("[").append(std::to_string(rank)).append("] ");
  std::map<std::string, std::string> variables;
  for (const std::string& line : sorted_lines(text))
    if (const auto equals = line.find('='); line.starts_with(prefix) && equals != line.npos)
      variables[line.substr(prefix.size(), equals - prefix.size())] = line.substr(equals + 1);
  return variables;
}

std::vector<pid_t> pids_in(const std::string& text) {
  std::vector<pid_t> pids;
  for (const std::string& line : sorted_lines(text))
    pids.push_back(std::stoi(line.substr(line.find(' ') + 1)));
  return pids;
}

bool all_gone(const std::vector<pid_t>& pids) {
  return std::none_of(pids.begin(), pids.end(), is_running);
}

pid_t only_child_of(pid_t pid) {
  pid_t child = 0;
  soon([&] {
    for (const pid_t each : process_ids()) {
      const auto process = process_stat(each);
      if (process && process->parent == pid && process->state == 'S') child = each;
    }
    return child != 0;
  });
  return child;
}

double seconds_to(const std::function<void()>& act) {
  const auto start = Clock::now();
  act();
  return seconds_since(start);
}

// --- Exit codes ---------------------------------------------------------------------------------

TEST(LockstepRun, EndsWithZeroWhenAllRanksDo) {
  const Finished run = run_command(ranks_of_script(3, "echo $RANK"));
  EXPECT_EQ(run.code, 0);
  EXPECT_EQ(sorted_lines(run.out), (std::vector<std::string>{"[0] 0", "[1] 1", "[2] 2"}));
  EXPECT_EQ(run.err, "");
}

TEST(LockstepRun, EndsWithTheCodeOfTheRankThatFailedFirst) {
  const Finished run = run_command(ranks_of_script(3, "[ $RANK = 1 ] && exit 7; exec sleep 100"));
  EXPECT_EQ(run.code, 7);
  EXPECT_TRUE(contains(run.err, "lockstep run: rank 1 exited with code 7\n")) << run.err;
  EXPECT_TRUE(contains(run.err, "lockstep run: caused by rank 1 (pid ")) << run.err;
  EXPECT_TRUE(contains(run.err, "; exit code 7\nlockstep run: to do: ")) << run.err;
}

TEST(LockstepRun, EndsWith128AndTheSignalThatKilledARank) {
  const Finished run =
      run_command(ranks_of_script(2, "[ $RANK = 1 ] && kill -9 $$; exec sleep 100"));
  EXPECT_EQ(run.code, 137);
  EXPECT_TRUE(contains(run.err, "was killed by signal 9 (SIGKILL)")) << run.err;
}

TEST(LockstepRun, AProgramThatCannotBeStartedCostsOneLineAndNoRank) {
  const ScratchDirectory scratch;
  const std::string text = scratch.path() / "text";
  std::ofstream(text) << "hello";
  const auto expect = [&](const std::string& program, int code) {
    const Finished run = run_command({LOCKSTEP_RUN, "-n", "2", program});
    EXPECT_EQ(run.code, code) << program;
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
  };
  expect("/no/such/program", 127);
  expect("no-such-program", 127);
  expect(text, 126);
  expect(scratch.path(), 64);
  expect(".", 64);
  std::filesystem::permissions(text, std::filesystem::perms::owner_all);
  expect(text, 126);  // Only the kernel detects that it is not a program.
  std::ofstream(text) << "#!/opt/no/python3\n";
  expect(text, 127);
}

TEST(LockstepRun, TakesTorchrunsVariablesAndIgnoresServiceLinks) {
  const Arguments words{
      "/usr/bin/env",
      "PET_NPROC_PER_NODE=2",
      "PET_NNODES=1",
      "PET_NODE_RANK=0",
      "PET_MASTER_ADDR=train-node-0-0.train",
      "PET_MASTER_PORT=tcp://10.0.0.1:29500",
      "LOCKSTEP_MASTER_PORT=tcp://10.0.0.1:29400",
      "LOCKSTEP_METRICS_PORT=tcp://10.0.0.2:9100",
      "MASTER_PORT=tcp://10.0.0.3:23456",
      LOCKSTEP_RUN,
      "/bin/sh",
      "-c",
      "case $MASTER_PORT in *[!0-9]*) exit 9;; esac; echo rank $RANK of $WORLD_SIZE"};
  const Finished run = run_command(words);
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(sorted_lines(run.out), (Arguments{"[0] rank 0 of 2", "[1] rank 1 of 2"}));
  const Arguments warnings = sorted_lines(run.err);
  ASSERT_EQ(warnings.size(), 3U) << run.err;
  EXPECT_TRUE(contains(warnings[0], "lockstep run: ignoring LOCKSTEP_MASTER_PORT=tcp://10.0.0.1:"));
  EXPECT_TRUE(
      contains(warnings[1], "lockstep run: ignoring LOCKSTEP_METRICS_PORT=tcp://10.0.0.2:"));
  EXPECT_TRUE(contains(warnings[2], "lockstep run: ignoring PET_MASTER_PORT=tcp://10.0.0.1:29500"));
}

// Even if a script sets the variable for all programs.
TEST(LockstepRun, DoesNotPassTheChoiceOfALauncherOn) {
  const Finished run = run_command({"/usr/bin/env", "LOCKSTEP_LAUNCHER=none", LOCKSTEP_RUN,
                                    "/bin/sh", "-c", "echo ${LOCKSTEP_LAUNCHER-unset}"});
  EXPECT_EQ(run.out, "[0] unset\n") << run.err;
}

TEST(LockstepRun, RefusesWrongOptionsWith64AndOneLine) {
  for (const Arguments& wrong : std::vector<Arguments>{{},
                                                       {"-n", "0", "true"},
                                                       {"-n", "many", "true"},
                                                       {"-n", "-2", "true"},
                                                       {"-n", "99999999999", "true"},
                                                       {"-n"},
                                                       {"--bogus", "true"},
                                                       {"--shutdown-timeout", "-1", "true"},
                                                       {""},
                                                       {"--"}}) {
    Arguments arguments{LOCKSTEP_RUN};
    arguments.insert(arguments.end(), wrong.begin(), wrong.end());
    const Finished run = run_command(arguments);
    EXPECT_EQ(run.code, 64) << testing::PrintToString(wrong);
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
  }
}

nlohmann::json only_line(const Finished& run) {
  EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
  return nlohmann::json::parse(run.err, nullptr, /*allow_exceptions=*/false);
}

TEST(LockstepRun, ReportsStartupErrorsInTheRequestedFormat) {
  const auto expect = [](const Arguments& words, int code, const std::string& part) {
    Arguments arguments{LOCKSTEP_RUN};
    arguments.insert(arguments.end(), words.begin(), words.end());
    const Finished run = run_command(arguments);
    const nlohmann::json line = only_line(run);
    EXPECT_EQ(run.code, code) << run.err;
    ASSERT_TRUE(line.is_object()) << run.err;
    EXPECT_EQ(line["level"], "error");
    EXPECT_TRUE(line.contains("time"));
    EXPECT_TRUE(contains(line["message"], part)) << run.err;
  };
  expect({"--log-format", "json", "-n", "0", "true"}, 64, "-n: must be a number");
  expect({"-n", "0", "--log-format=json", "true"}, 64, "-n: must be a number");
  expect({"--bogus", "--log-format=json", "true"}, 64, "--bogus");
  expect({"--log-format=json", "/no/such/program"}, 127, "/no/such/program");
  expect({"--log-format=json", "-n", "99999", "--bind", "core", "/bin/true"}, 64, "cores of their");
  expect({"--log-format=json", "--log-dir", "/etc/passwd/logs", "/bin/true"}, 64,
         "folder for logs");
}

class LockstepRunTimeline : public ::testing::Test {
 public:
  Finished run(const std::string& script) const {
    return run_command(ranks_of_script(2, script, {"--timeline", file_}));
  }

  bool is_alone() const {
    const std::filesystem::directory_iterator all(scratch_.path());
    return std::all_of(begin(all), end(all),
                       [&](const auto& each) { return each.path() == file_; });
  }

  const std::string& file() const { return file_; }

 private:
  const ScratchDirectory scratch_;
  const std::string file_ = scratch_.path() / "t.json";
};

TEST_F(LockstepRunTimeline, IsAbsentIfAProgramRecordsNothing) {
  std::ofstream(file()) << "of an earlier run";
  const Finished done = run("exit 0");
  EXPECT_EQ(done.code, 0);
  EXPECT_EQ(done.err,
            "lockstep run: no timeline: no rank has recorded anything, which begins in "
            "init_process_group()\n");
  EXPECT_FALSE(std::filesystem::exists(file())) << "an old file looks like the new one";
  EXPECT_TRUE(is_alone());
}

TEST_F(LockstepRunTimeline, ThatIsLostLeavesItsSpansInAFolderThatIsNamed) {
  const Finished done = run("echo short > $LOCKSTEP_TIMELINE_DIR/attempt-0.rank-$RANK.spans");
  EXPECT_EQ(done.code, 74);
  EXPECT_TRUE(contains(done.err, "lockstep run: the timeline was lost: no file of spans"))
      << done.err;
  const std::string left = "; spans are left in ";
  const auto begin = done.err.find(left);
  ASSERT_NE(begin, done.err.npos) << done.err;
  const std::string folder =
      done.err.substr(begin + left.size(), done.err.size() - begin - left.size() - 1);
  EXPECT_TRUE(std::filesystem::exists(folder + "/attempt-0.rank-1.spans")) << folder;
}

TEST(LockstepRun, AFormatThatThereIsNotIsRefusedInText) {
  const Finished run = run_command({LOCKSTEP_RUN, "--log-format", "xml", "/bin/true"});
  EXPECT_EQ(run.code, 64);
  EXPECT_TRUE(run.err.starts_with("lockstep run: --log-format: must be one of text, json"))
      << run.err;
}

TEST(LockstepRun, ALogLevelThatThereIsNotIsRefused) {
  const Finished run = run_command({LOCKSTEP_RUN, "/bin/true"}, {"LOCKSTEP_LOG=loud"});
  EXPECT_EQ(run.code, 64);
  EXPECT_EQ(run.err,
            "lockstep run: LOCKSTEP_LOG='loud' is no level: error, warning, info, debug or off\n");
  EXPECT_EQ(run_command({LOCKSTEP_RUN, "/bin/true"}, {"LOCKSTEP_LOG="}).code, 0);
}

TEST(LockstepRun, AFolderForLogsWhoseWorkingDirectoryIsGoneIsRefusedWith64) {
  const ScratchDirectory scratch;
  const std::string gone = scratch.path() / "gone";
  const Finished run = run_command({"/bin/sh", "-c",
                                    "mkdir " + gone + " && cd " + gone + " && rmdir " + gone +
                                        " && exec " LOCKSTEP_RUN " --log-dir logs /bin/true"});
  EXPECT_EQ(run.code, 64);
  EXPECT_TRUE(contains(run.err, "lockstep run: logs, the folder for logs: ")) << run.err;
  EXPECT_TRUE(contains(run.err, "give an absolute path\n")) << run.err;
}

TEST(LockstepRun, HelpHasExamples) {
  const Finished help = run_command({LOCKSTEP_RUN, "--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_TRUE(contains(help.out, "lockstep run -n 4 ./my_program"));
}

TEST(LockstepRun, TakesItsOptionsFromTheEnvironmentToo) {
  const Finished run = run_command({LOCKSTEP_RUN, "/bin/sh", "-c", "echo $WORLD_SIZE"},
                                   {"LOCKSTEP_NPROC_PER_NODE=2", "LOCKSTEP_VERBOSE=1"});
  EXPECT_EQ(sorted_lines(run.out), (std::vector<std::string>{"[0] 2", "[1] 2"}));
  EXPECT_TRUE(contains(run.err, "rank 1: pid "));
}

TEST(LockstepRun, PassesArgumentsAfterTheProgramUnchanged) {
  const std::string script = "for a in \"$@\"; do echo \"<$a>\"; done";
  const Finished run = run_command({LOCKSTEP_RUN, "-n", "1", "--", "/bin/sh", "-c", script, "sh",
                                    "-n", "3", "--", "--help", "[a,b]", "", "two words", "-v"});
  EXPECT_EQ(run.code, 0);
  EXPECT_EQ(run.out,
            "[0] <-n>\n[0] <3>\n[0] <-->\n[0] <--help>\n[0] <[a,b]>\n[0] <>\n[0] <two words>\n"
            "[0] <-v>\n");
}

TEST(LockstepRun, ADryRunDescribesTheRunAndStartsNothing) {
  const ScratchDirectory scratch;
  const std::string mark = scratch.path() / "started";
  const std::string logs = scratch.path() / "logs";
  const Finished run =
      run_command(ranks_of_script(2, "touch " + mark, {"--dry-run", "--log-dir", logs}));
  EXPECT_EQ(run.code, 0);
  EXPECT_EQ(run.err, "");
  for (const char* part :
       {"2 ranks on this host\n", "command: /bin/sh -c 'touch ", "package ",
        "\nrank 1: ", "LOCAL_RANK=1 RANK=1", "  WORLD_SIZE=2\n", "1/stderr.log, and shown here\n"})
    EXPECT_TRUE(contains(run.out, part)) << part << " in " << run.out;
  EXPECT_FALSE(std::filesystem::exists(mark));
  EXPECT_FALSE(std::filesystem::exists(logs));
}

TEST(LockstepRun, ADryRunFindsOutThatThereIsNoProgram) {
  EXPECT_EQ(run_command({LOCKSTEP_RUN, "--dry-run", "/no/such/program"}).code, 127);
  EXPECT_EQ(run_command({LOCKSTEP_RUN, "--dry-run", "/etc/passwd"}).code, 126);
}

TEST(LockstepRun, MoreRanksThanCoresThatAreToHaveTheirOwnAreRefusedWith64) {
  for (const char* option : {"--verbose", "--dry-run"}) {
    const Finished run =
        run_command({LOCKSTEP_RUN, option, "-n", "99999", "--bind", "core", "/bin/true"});
    EXPECT_EQ(run.code, 64);
    EXPECT_TRUE(contains(run.err, "99999 ranks cannot have cores of their own")) << run.err;
    EXPECT_EQ(std::count(run.err.begin(), run.err.end(), '\n'), 1) << run.err;
  }
}

TEST(LockstepRun, VerboseShowsTheHostAndItsRanks) {
  const Finished run = run_command(ranks_of_script(1, "exit 0", {"-v"}));
  EXPECT_TRUE(contains(run.err, "lockstep run: package ")) << run.err;
  EXPECT_TRUE(contains(run.err, "lockstep run: rank 0: pid ")) << run.err;
}

// --- Variables and descriptors of a rank --------------------------------------------------------

TEST(LockstepRun, EachRankReceivesTheVariablesOfTorchrun) {
  const Finished run = run_command({LOCKSTEP_RUN, "-n", "2", "/usr/bin/env"}, {"RANK=9"});
  auto rank = variables_in(run.out, 1);
  for (const auto& [key, value] :
       std::map<std::string, std::string>{{"RANK", "1"},
                                          {"LOCAL_RANK", "1"},
                                          {"WORLD_SIZE", "2"},
                                          {"LOCAL_WORLD_SIZE", "2"},
                                          {"GROUP_RANK", "0"},
                                          {"GROUP_WORLD_SIZE", "1"},
                                          {"ROLE_RANK", "1"},
                                          {"ROLE_WORLD_SIZE", "2"},
                                          {"ROLE_NAME", "default"},
                                          {"MASTER_ADDR", "127.0.0.1"},
                                          {"TORCHELASTIC_RESTART_COUNT", "0"},
                                          {"TORCHELASTIC_MAX_RESTARTS", "0"},
                                          {"TORCHELASTIC_USE_AGENT_STORE", "False"}})
    EXPECT_EQ(rank[key], value) << key;
  EXPECT_EQ(rank["LOCKSTEP_JOB_ID"].size(), 32U);
  EXPECT_EQ(rank["TORCHELASTIC_RUN_ID"], rank["LOCKSTEP_JOB_ID"]);
  EXPECT_GT(std::stoi(rank["MASTER_PORT"]), 1023);
  EXPECT_EQ(rank.count("LOCKSTEP_TERMINAL"), 0U) << "stderr is a file";

  auto other = variables_in(run.out, 0);
  EXPECT_EQ(other["MASTER_PORT"], rank["MASTER_PORT"]);
  EXPECT_EQ(other["LOCKSTEP_JOB_ID"], rank["LOCKSTEP_JOB_ID"]);
}

TEST(LockstepRun, AMasterPortThatItsUserChoseIsWhatTheRanksFindAtEveryAttempt) {
  const ReservedPort reserved;
  const std::string port = std::to_string(reserved.number());
  // If rank 0 failed, rank 1 could be ended before it writes its line.
  const Finished run = run_command(
      ranks_of_script(2,
                      "echo port$LOCKSTEP_ATTEMPT=$MASTER_PORT; [ $LOCKSTEP_ATTEMPT = 1 ] && exit; "
                      "[ $RANK = 1 ] && exit 3; exec sleep 60",
                      {"--master-port", port, "--max-restarts", "1"}));
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(variables_in(run.out, 1),
            (std::map<std::string, std::string>{{"port0", port}, {"port1", port}}));
}

TEST(LockstepRun, AMasterPortThatSomebodyListensOnIsRefusedByTheProcessWithNoRankStarted) {
  const ReservedPort port;
  const FileDescriptor server = try_to_listen(numeric_address("127.0.0.1", port.number()));
  ASSERT_TRUE(server);
  const Finished run =
      run_command(ranks_of_script(1, "echo up", {"--master-port", std::to_string(port.number())}));
  EXPECT_EQ(run.code, 64);
  EXPECT_EQ(run.out, "");
  EXPECT_TRUE(
      contains(run.err, "is in use\nlockstep run: caused by process " + std::to_string(::getpid())))
      << run.err;
}

TEST(LockstepRun, ARankInheritsItsLineToTheAgentAndItsErrorFileAndNoOtherDescriptor) {
  const FileDescriptor leak(::dup(STDERR_FILENO));  // Not close-on-exec: the launcher inherits it.
  const Finished run = run_command({LOCKSTEP_RUN, "-n", "3", "/bin/ls", "-l", "/proc/self/fd"});
  std::map<char, int> open;
  std::map<char, int> beyond;
  for (const std::string& line : sorted_lines(run.out)) {
    const auto arrow = line.find(" -> ");
    if (arrow == line.npos) continue;
    ++open[line[1]];
    const std::string file = line.substr(arrow + 4);
    const int fd = std::stoi(line.substr(line.rfind(' ', arrow - 1)));
    if (fd <= 2 || contains(file, "/fd")) continue;
    ++beyond[line[1]];
    EXPECT_TRUE(file.starts_with("socket:") || file.starts_with("/memfd:error.json")) << file;
  }
  EXPECT_EQ(open, (std::map<char, int>{{'0', 6}, {'1', 6}, {'2', 6}})) << run.out;
  EXPECT_EQ(beyond, (std::map<char, int>{{'0', 2}, {'1', 2}, {'2', 2}})) << run.out;
}

TEST(LockstepRun, OnlyRankZeroReadsTheLaunchersInput) {
  const Finished run = run_command(
      {"/bin/sh", "-c", "echo input | " LOCKSTEP_RUN " -n 2 /bin/sh -c 'echo got $(cat)'"});
  EXPECT_EQ(sorted_lines(run.out), (std::vector<std::string>{"[0] got input", "[1] got"}));
}

TEST(LockstepRun, CoresAreDividedAmongTheRanksAndShown) {
  const int cores = usable_cores();
  const Finished run = run_command(ranks_of_script(
      cores, "grep Cpus_allowed_list /proc/self/status; echo threads=$OMP_NUM_THREADS",
      {"-v", "--bind", "core"}));
  EXPECT_EQ(run.code, 0);
  std::set<std::string> lists;
  for (const std::string& line : sorted_lines(run.out))
    if (const auto at = line.find("list:\t"); at != line.npos) lists.insert(line.substr(at + 6));
  EXPECT_EQ(static_cast<int>(lists.size()), cores) << "each rank has a core of its own";
  for (const std::string& list : lists)
    EXPECT_TRUE(contains(run.err, ", cores " + list + ", OMP_NUM_THREADS=1\n")) << run.err;
  EXPECT_EQ(variables_in(run.out)["threads"], "1");
}

TEST(LockstepRun, OneRankHasAllCoresAndAThreadForEach) {
  const std::string script = "echo threads=$OMP_NUM_THREADS";
  ::unsetenv("OMP_NUM_THREADS");
  auto alone = variables_in(run_command(ranks_of_script(1, script)).out);
  EXPECT_EQ(alone["threads"], std::to_string(usable_cores()));
  auto told = variables_in(run_command(ranks_of_script(1, script), {"OMP_NUM_THREADS=5"}).out);
  EXPECT_EQ(told["threads"], "5");
}

TEST(LockstepRun, WithMoreRanksThanCoresNobodyIsBound) {
  cpu_set_t mask;
  ASSERT_EQ(::sched_getaffinity(0, sizeof mask, &mask), 0);
  const Finished run = run_command(ranks_of_script(
      CPU_COUNT(&mask) + 1, "echo cores=$(nproc --all) bound=$(OMP_NUM_THREADS= nproc)"));
  ::unsetenv("OMP_NUM_THREADS");
  for (const std::string& line : sorted_lines(run.out))
    EXPECT_TRUE(line.ends_with("bound=" + std::to_string(CPU_COUNT(&mask)))) << line;
}

// --- Output -------------------------------------------------------------------------------------

TEST(LockstepRun, KeepsLinesCompleteAtHighVolume) {
  const Finished run = run_command(
      ranks_of_script(4, "seq -f \"$RANK line %06g of many, and a little more to write\" 20000"));
  EXPECT_EQ(run.code, 0);
  std::array<int, 4> next{};
  std::istringstream in(run.out);
  for (std::string line; std::getline(in, line);) {
    const auto rank = static_cast<std::size_t>(line[1] - '0');
    ASSERT_LT(rank, 4U);
    std::array<char, 128> expected;
    std::snprintf(expected.data(), expected.size(),
                  "[%zu] %zu line %06d of many, and a little more to write", rank, rank,
                  ++next[rank]);
    ASSERT_EQ(line, expected.data());
  }
  EXPECT_EQ(next, (std::array<int, 4>{20000, 20000, 20000, 20000}));
}

TEST(LockstepRun, StdoutAndStderrStayApart) {
  const Finished run = run_command(ranks_of_script(1, "echo out; echo err >&2; printf end"));
  EXPECT_EQ(run.out, "[0] out\n[0] end\n");
  EXPECT_EQ(run.err, "[0] err\n");
}

TEST(LockstepRun, AReaderWhoLeavesDoesNotEndTheJob) {
  const ScratchDirectory scratch;
  const std::string mark = scratch.path() / "done";
  const std::string script = "seq 100000; echo > " + mark + "$RANK; exit 3";
  Arguments job = ranks_of_script(2, "'" + script + "'");
  std::string line = "(";
  for (const std::string& word : job) line += word + " ";
  const Finished run = run_command({"/bin/sh", "-c", line + "; echo $? >&2) | head -n 1"});
  EXPECT_EQ(sorted_lines(run.out).size(), 1U);
  EXPECT_TRUE(contains(run.err, "\n3\n")) << run.err;
  EXPECT_TRUE(std::filesystem::exists(mark + "0") || std::filesystem::exists(mark + "1"));
}

TEST(LockstepRun, AReaderWhoLeavesIsNoReasonForAnotherExitCode) {
  const Finished run = run_command(
      {"/bin/sh", "-c", "(" LOCKSTEP_RUN " /usr/bin/seq 100000; echo $? >&2) | head -n 1"});
  EXPECT_EQ(run.out, "[0] 1\n");
  EXPECT_EQ(run.err, "0\n");
}

TEST(LockstepRun, ReportsLostOutputAndFailsWithItsExitCodeIfRanksSucceed) {
  const auto run_into = [](const std::string& redirection, const std::string& script) {
    return run_command(
        {"/bin/sh", "-c", LOCKSTEP_RUN " -n 2 /bin/sh -c '" + script + "' " + redirection});
  };
  const Finished full = run_into("> /dev/full", "echo out");
  EXPECT_EQ(full.code, 74);
  EXPECT_EQ(full.err,
            "lockstep run: writing to stdout: No space left on device; what follows is dropped\n"
            "lockstep run: output of the ranks was lost; exit code 74\n");
  EXPECT_EQ(run_into("2> /dev/full", "echo err >&2").code, 74);
  EXPECT_EQ(run_into("> /dev/full 2>&1", "echo out").code, 74);
  EXPECT_EQ(run_into("> /dev/full", "echo out; exit 3").code, 3);
  EXPECT_EQ(run_into("> /dev/full", "exit 0").code, 0) << "nothing was lost";
  const Finished closed = run_into(">&-", "echo out");
  EXPECT_EQ(closed.code, 0) << "no output is wanted";
  EXPECT_EQ(closed.err, "");
}

// Ranks must not inherit the ignored signal.
TEST(LockstepRun, ReportsALogAboveTheSizeLimitOnceAndContinuesTheJob) {
  const ScratchDirectory scratch;
  const Finished run = run_command(
      {"/bin/sh", "-c",
       "(ulimit -f 64; " LOCKSTEP_RUN " --log-dir " + (scratch.path() / "logs").string() +
           " /bin/sh -c 'grep -E \"Sig(Ign|Blk)\" /proc/self/status; seq 20000' 2>&1; echo $?) | "
           "grep -v '^.0. [0-9]*$'"});
  EXPECT_TRUE(contains(run.out, "[0] SigBlk:\t0000000000000000\n")) << run.out;
  EXPECT_TRUE(contains(run.out, "[0] SigIgn:\t0000000000000000\n")) << run.out;
  const std::string loss = "/stdout.log: File too large; what follows is not in it\n";
  EXPECT_TRUE(contains(run.out, loss)) << run.out;
  EXPECT_FALSE(contains(run.out.substr(run.out.find(loss) + 1), loss)) << run.out;
  EXPECT_TRUE(run.out.ends_with("\n0\n")) << run.out;
}

TEST(LockstepRun, ReportsARedirectedLogAboveTheSizeLimitAndContinuesTheRank) {
  const ScratchDirectory scratch;
  const Finished run = run_command({"/bin/sh", "-c",
                                    "(ulimit -f 64; " LOCKSTEP_RUN " -r 1 --log-dir " +
                                        (scratch.path() / "logs").string() +
                                        " /bin/sh -c 'seq 20000; echo went on >&2')"});
  const std::string loss = "/stdout.log: File too large; what follows is not in it\n";
  EXPECT_EQ(run.code, 0);
  EXPECT_EQ(run.out, "");
  EXPECT_TRUE(contains(run.err, loss)) << run.err;
  EXPECT_FALSE(contains(run.err.substr(run.err.find(loss) + 1), loss)) << run.err;
  EXPECT_TRUE(contains(run.err, "[0] went on\n")) << run.err;
}

// --- Life and death -----------------------------------------------------------------------------

TEST(LockstepRun, TheFirstFailureEndsTheOthersSoon) {
  Finished run{};
  const double seconds = seconds_to([&] {
    run = run_command(ranks_of_script(4, "[ $RANK = 2 ] && exit 5; exec sleep 100",
                                      {"--shutdown-timeout", "50"}));
  });
  EXPECT_EQ(run.code, 5);
  EXPECT_LT(seconds, 30);
}

TEST(LockstepRun, ARankThatIgnoresSigtermIsKilledAfterTheTimeout) {
  Finished run{};
  const ScratchDirectory scratch;
  const std::string ignores = scratch.path() / "ignores";
  const std::string script = "trap '' TERM; [ $RANK = 0 ] || : > " + ignores + "; until [ -e " +
                             ignores +
                             " ]; do sleep 0.01; done; [ $RANK = 0 ] && exit 5; "
                             "while :; do sleep 100; done";
  const double seconds = seconds_to([&] {
    run = run_command(ranks_of_script(2, script, {"--shutdown-timeout", "0.5"}));
  });
  EXPECT_EQ(run.code, 5);
  EXPECT_GE(seconds, 0.5);
  EXPECT_LT(seconds, 8);
  EXPECT_TRUE(contains(run.err, "rank 1 did not end within 0.5 s after SIGTERM: killed"))
      << run.err;
}

TEST(LockstepRun, AStoppedRankIsEndedToo) {
  const Finished run = run_command(
      ranks_of_script(2, "[ $RANK = 0 ] && sleep 0.3 && exit 5; kill -STOP $$; sleep 100"));
  EXPECT_EQ(run.code, 5);
}

TEST(LockstepRun, ASignalReachesTheRanksAndIsTheExitCode) {
  for (const auto& [sent, got] : std::map<int, std::string>{
           {SIGINT, "INT"}, {SIGTERM, "TERM"}, {SIGHUP, "TERM"}, {SIGQUIT, "TERM"}}) {
    RunningCommand run(
        ranks_of_script(2,
                        "for s in INT TERM; do trap \"echo got $s; exit 0\" $s; done; echo up;"
                        "while :; do sleep 0.05; done"));
    ASSERT_TRUE(soon([&] { return sorted_lines(run.out()).size() == 2; }));
    ::kill(run.pid(), sent);
    EXPECT_EQ(run.wait(), 128 + sent);
    EXPECT_TRUE(contains(run.out(), "[0] got " + got + "\n")) << run.out();
    EXPECT_TRUE(contains(run.out(), "[1] got " + got + "\n")) << run.out();
    EXPECT_TRUE(contains(run.err(), "stopped by SIG")) << run.err();
  }
}

TEST(LockstepRun, ASecondInterruptKillsAtOnce) {
  RunningCommand run(ranks_of_script(2,
                                     "trap 'echo int' INT; echo up; while :; do sleep 0.05; done",
                                     {"--shutdown-timeout", "50"}));
  ASSERT_TRUE(soon([&] { return sorted_lines(run.out()).size() == 2; }));
  ::kill(run.pid(), SIGINT);
  ASSERT_TRUE(
      soon([&] { return contains(run.out(), "[0] int") && contains(run.out(), "[1] int"); }));
  ::usleep(100'000);  // The launcher treats two signals at once as one.
  int code = 0;
  EXPECT_LT(seconds_to([&] {
              ::kill(run.pid(), SIGINT);
              code = run.wait();
            }),
            30)
      << "the timeout is 50 seconds";
  EXPECT_EQ(code, 130);
}

// A terminal of 40 columns, without colours.
struct OnTerminal {
  explicit OnTerminal(Arguments arguments) {
    int controller = -1;
    const winsize size{.ws_row = 10, .ws_col = 40, .ws_xpixel = 0, .ws_ypixel = 0};
    pid = ::forkpty(&controller, nullptr, nullptr, &size);
    if (pid == 0) {
      std::vector<char*> pointers;
      for (std::string& argument : arguments) pointers.push_back(argument.data());
      pointers.push_back(nullptr);
      ::setenv("NO_COLOR", "1", 1);
      ::execv(pointers[0], pointers.data());
      ::_exit(127);
    }
    screen = FileDescriptor(controller);
    ::fcntl(controller, F_SETFL, O_NONBLOCK);
  }

  bool shows(const std::string& text) {
    return soon([&] {
      std::array<char, 4096> buffer;
      const ssize_t length = ::read(screen.get(), buffer.data(), buffer.size());
      if (length > 0) shown.append(buffer.data(), static_cast<std::size_t>(length));
      return contains(shown, text);
    });
  }

  int wait() const {
    int status = 0;
    ::waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  }

  pid_t pid = 0;
  FileDescriptor screen;
  std::string shown;
};

TEST(LockstepRun, ControlCOnATerminalReachesEachRankOnce) {
  OnTerminal run(ranks_of_script(
      2,
      "trap 'echo got int; sleep 0.3; echo cleaned up; exit 0' INT; echo width $LOCKSTEP_TERMINAL;"
      "while :; do sleep 0.05; done"));
  ASSERT_TRUE(run.shows("[0] width 36"));
  ASSERT_TRUE(run.shows("[1] width 36"));
  ASSERT_EQ(::write(run.screen.get(), "\003", 1), 1);
  EXPECT_TRUE(run.shows("[0] cleaned up"));
  EXPECT_TRUE(run.shows("[1] cleaned up"));
  EXPECT_TRUE(run.shows("stopped by SIGINT; exit code 130"));
  EXPECT_EQ(run.wait(), 130);
}

TEST(LockstepRun, AStatusLineIsErasedBeforeTheNextLine) {
  const ScratchDirectory scratch;
  const std::string shown = scratch.path() / "shown";
  OnTerminal run(ranks_of_script(
      1, "printf '50%%\\r' >&2; until [ -e " + shown + " ]; do sleep 0.01; done; echo line"));
  EXPECT_TRUE(run.shows("[0] 50%"));
  std::ofstream(shown).flush();
  EXPECT_TRUE(run.shows("[0] 50%\033[?7h\r\033[K[0] line\r\n"));
  EXPECT_EQ(run.wait(), 0);
}

TEST(LockstepRun, NohupKeepsItFromBeingHungUp) {
  RunningCommand run(
      {"/usr/bin/nohup", LOCKSTEP_RUN, "/bin/sh", "-c", "echo up; sleep 0.5; echo on"});
  ASSERT_TRUE(soon([&] { return contains(run.out(), "up"); }));
  ::kill(run.pid(), SIGHUP);
  EXPECT_EQ(run.wait(), 0);
  EXPECT_TRUE(contains(run.out(), "[0] on"));
}

TEST(LockstepRun, ManyRanksNeedNoHigherLimitOfOpenFiles) {
  const Finished run = run_command(
      {"/bin/sh", "-c", "ulimit -S -n 64; exec " LOCKSTEP_RUN " -n 60 /bin/sh -c 'ulimit -S -n'"});
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_TRUE(contains(run.out, "[59] 64\n")) << run.out;
}

TEST(LockstepRun, ASmallStackIsEnough) {
  const Finished run =
      run_command({"/bin/sh", "-c", "ulimit -s 64 && exec " LOCKSTEP_RUN " -n 2 /bin/echo up"});
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(sorted_lines(run.out), (std::vector<std::string>{"[0] up", "[1] up"}));
}

TEST(LockstepRun, RestartsAFailingProgramAfterReportedPauses) {
  const Finished run = run_command(ranks_of_script(1, "exit 3", {"--max-restarts", "3"}));
  EXPECT_EQ(run.code, 3);
  for (const char* line : {"attempt 1: 1 rank on 1 host, restart 1 of 3\n",
                           "restarting in 0.1 s\nlockstep run: attempt 2: ",
                           "restarting in 0.2 s\nlockstep run: attempt 3: "})
    EXPECT_TRUE(contains(run.err, std::string("lockstep run: ") + line)) << run.err;
  EXPECT_FALSE(contains(run.err, "restarting in 0 s")) << run.err;
  std::size_t failures = 0;
  for (auto at = run.err.find("exited with code 3\n"); at != run.err.npos;
       at = run.err.find("exited with code 3\n", at + 1))
    ++failures;
  EXPECT_EQ(failures, 4U) << "each is said once: " << run.err;
}

TEST(LockstepRun, APauseIsShownByStatusAndEndsAtOnceWithASignal) {
  const std::string id = "pausing-" + std::to_string(::getpid());
  RunningCommand run(ranks_of_script(1, "exit 3", {"--max-restarts", "1000", "--rdzv-id", id}));
  ASSERT_TRUE(soon([&] { return contains(run.err(), "restarting in 0.4 s"); }));
  EXPECT_TRUE(soon([&] {
    return contains(run_command({LOCKSTEP_STATUS, id}).out, "pausing for ");
  }));
  ::kill(run.pid(), SIGTERM);
  EXPECT_EQ(run.wait(), 128 + SIGTERM);
  EXPECT_TRUE(contains(run.err(), "stopped by SIGTERM; exit code 143\n")) << run.err();
}

TEST(LockstepRun, EndsProcessesThatARankLeavesBehind) {
  const Finished run = run_command(
      ranks_of_script(2, "setsid sleep 1000 & echo $!; sleep 1000 & echo $!; sleep 0.1; exit 0"));
  EXPECT_EQ(run.code, 0);
  const auto pids = pids_in(run.out);
  ASSERT_EQ(pids.size(), 4U);
  EXPECT_TRUE(all_gone(pids));
}

// A child, and a grandchild with its own session.
constexpr const char* with_family =
    "sleep 1000 & echo $!; setsid sh -c 'echo $$; exec sleep 1000' & echo $$; wait";

TEST(LockstepRun, NothingSurvivesTheLauncherThatIsKilled) {
  RunningCommand run(ranks_of_script(2, with_family));
  ASSERT_TRUE(soon([&] { return sorted_lines(run.out()).size() == 6; }));
  const auto pids = pids_in(run.out());
  EXPECT_FALSE(all_gone(pids));
  ::kill(run.pid(), SIGKILL);
  EXPECT_TRUE(soon([&] { return all_gone(pids); }));
  EXPECT_EQ(run.wait(), 1000 + SIGKILL);
}

TEST(LockstepRun, NothingSurvivesTheAgentThatIsKilled) {
  RunningCommand run(ranks_of_script(2, with_family));
  ASSERT_TRUE(soon([&] { return sorted_lines(run.out()).size() == 6; }));
  const auto pids = pids_in(run.out());
  const pid_t agent = only_child_of(run.pid());
  ASSERT_GT(agent, 0);
  ::kill(agent, SIGKILL);
  EXPECT_EQ(run.wait(), 137);
  EXPECT_TRUE(all_gone(pids));
}

TEST(LockstepRun, EightConcurrentLaunchersDoNotInterfere) {
  const ScratchDirectory scratch;
  const std::string all_run = scratch.path() / "all run";
  std::vector<std::unique_ptr<RunningCommand>> runs;
  for (int i = 0; i < 8; ++i)
    runs.push_back(std::make_unique<RunningCommand>(
        ranks_of_script(2, "echo id=$LOCKSTEP_JOB_ID; echo port=$MASTER_PORT; until [ -e '" +
                               all_run + "' ]; do sleep 0.1; done")));
  for (const auto& run : runs)
    EXPECT_TRUE(soon([&] { return sorted_lines(run->out()).size() == 4; })) << run->err();
  std::ofstream(all_run).flush();
  std::set<std::string> ids, ports;
  for (const auto& run : runs) {
    EXPECT_EQ(run->wait(), 0);
    auto rank = variables_in(run->out(), 0);
    EXPECT_EQ(rank, variables_in(run->out(), 1));
    ids.insert(rank["id"]);
    ports.insert(rank["port"]);
  }
  EXPECT_EQ(ids.size(), 8U);
  EXPECT_EQ(ports.size(), 8U);
}

// --- Ranks that know the job control block
// ---------------------------------------------------------------

// As init_process_group() does.
JobControlBlock attach() {
  const int socket = std::atoi(std::getenv("LOCKSTEP_AGENT_FD"));
  Packet packet;
  packet.kind = Packet::Kind::want;
  copy_text(packet.key, job_control_block_key);
  check(::send(socket, &packet, sizeof packet, 0) == sizeof packet, "the agent is not there");

  iovec data{&packet, sizeof packet};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  header.msg_controllen = control.size();
  check(::recvmsg(socket, &header, 0) == sizeof packet, "the agent did not answer");
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof fd);
  return JobControlBlock::attach(FileDescriptor(fd));
}

int own_rank() { return std::atoi(std::getenv("RANK")); }

// Waits for the other ranks, then for `end` or a failure.
JobControlBlock enter() {
  JobControlBlock page = attach();
  page.enter(own_rank());
  page.activity(own_rank()).collective.enter({}, Operation::all_reduce, 812, ticks_now());
  soon([&] {
    for (int slot = 0; slot < page.slots(); ++slot)
      if (page.phase(slot) == JobControlBlock::Phase::vacant) return false;
    return true;
  });
  return page;
}

std::atomic<bool> told_to_end{false};

[[noreturn]] void wait_for_failure(const JobControlBlock& page, int code) {
  soon([&] { return page.failure().has_value(); }, 50s);
  std::printf("%s\n", page.failure() ? describe(*page.failure()).c_str() : "nothing");
  if (told_to_end) std::printf("told %s\n", page.since_failure() < 400ms ? "early" : "late");
  std::fflush(stdout);
  ::_exit(code);
}

const Ranks one_is_killed("one rank is killed in an operation", [](const Rank&) {
  ::signal(SIGTERM, [](int) { told_to_end = true; });
  const JobControlBlock page = enter();
  if (own_rank() == 1) ::raise(SIGKILL);
  wait_for_failure(page, 1);
});

const Ranks one_returns_early("one rank returns without destroying the group", [](const Rank&) {
  const JobControlBlock page = enter();
  if (own_rank() == 1) ::_exit(0);
  wait_for_failure(page, 4);
});

const Ranks nobody_says_goodbye("no rank destroys the group", [](const Rank&) {
  const JobControlBlock page = enter();
  if (own_rank() == 0) ::usleep(700'000);  // Longer than a rank's time to end after a failure.
  ::_exit(0);
});

// Ranks are this test's program.
Finished run_body(const std::string& body, int ranks) {
  return run_command({LOCKSTEP_RUN, "-n", std::to_string(ranks),
                      std::filesystem::read_symlink("/proc/self/exe"), "--lockstep-rank", body, "0",
                      std::to_string(ranks), "/tmp"});
}

TEST(LockstepRun, ARankThatEndsInOrderWithoutAGroupIsNotNamedForALaterFailure) {
  const Finished run =
      run_command(ranks_of_script(2, "[ $RANK = 1 ] || { sleep 0.5; kill -9 $$; }"));
  EXPECT_EQ(run.code, 137);
  EXPECT_TRUE(contains(run.err, "lockstep run: caused by rank 0 (pid ")) << run.err;
  EXPECT_FALSE(contains(run.err, "rank 1")) << run.err;
}

TEST(LockstepRun, ReportsAKilledRankAndItsOperationToSurvivorsThatEndThemselves) {
  const Finished run = run_body("one rank is killed in an operation", 3);
  EXPECT_EQ(run.code, 137);
  const std::string cause = "was killed by signal 9 (SIGKILL)";
  const std::string last_call = ", last seen in all_reduce #812";
  for (const char* survivor : {"[0] rank 1 (pid ", "[2] rank 1 (pid "})
    EXPECT_TRUE(contains(run.out, survivor)) << run.out;
  EXPECT_TRUE(contains(run.out, cause + last_call + '\n')) << run.out;
  EXPECT_TRUE(contains(run.err, cause + '\n')) << run.err;
  EXPECT_TRUE(contains(run.err, last_call + ';')) << run.err;
  EXPECT_FALSE(contains(run.out, "told early")) << run.out;
  // A survivor that stands still for 0.5 s gets SIGTERM, and its end is no failure then.
  EXPECT_TRUE(contains(run.out, "told late") ||
              contains(run.err, "then ranks 0,2 failed too; exit code 137\n"))
      << run.err;
}

TEST(LockstepRun, ARankThatReturnsEarlyIsAFailureOnceOthersWaitForIt) {
  const Finished run = run_body("one rank returns without destroying the group", 2);
  EXPECT_EQ(run.code, 4);
  EXPECT_TRUE(contains(run.out, "exited with code 0 without destroy_process_group()")) << run.out;
  EXPECT_TRUE(contains(run.err, "rank 1 (pid ")) << run.err;
  EXPECT_TRUE(contains(run.err, "then rank 0 failed too; exit code 4\n")) << run.err;
}

TEST(LockstepRun, SucceedsIfRanksEndWithoutDestroyingTheGroup) {
  const Finished run = run_body("no rank destroys the group", 2);
  EXPECT_EQ(run.code, 0);
  EXPECT_EQ(run.err, "");
}

// --- Figures for Prometheus ----------------------------------------------------------------------

// "127.0.0.1:PORT" from the output.
std::string metrics_address(const RunningCommand& run) {
  const std::string before = "lockstep run: metrics at http://";
  std::string err;
  soon([&] { return contains(err = run.err(), "/metrics\n"); });
  const auto begin = err.find(before);
  if (begin == err.npos) return "";
  return err.substr(begin + before.size(), err.find("/metrics\n") - begin - before.size());
}

std::string ask_for_metrics(const std::string& address) {
  const auto [host, port] = *host_and_port(address);
  const FileDescriptor socket = begin_connecting(numeric_address(host, port));
  pollfd writable{socket.get(), POLLOUT, 0};
  ::poll(&writable, 1, 20'000);
  const std::string request = "GET /metrics HTTP/1.1\r\n\r\n";
  EXPECT_EQ(::send(socket.get(), request.data(), request.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(request.size()));
  std::string answer;
  std::array<char, 4096> buffer;
  while (true) {
    pollfd readable{socket.get(), POLLIN, 0};
    if (::poll(&readable, 1, 20'000) <= 0) return "";
    const ssize_t length = ::recv(socket.get(), buffer.data(), buffer.size(), 0);
    if (length <= 0) return answer;
    answer.append(buffer.data(), static_cast<std::size_t>(length));
  }
}

TEST(LockstepRun, ServesFiguresOnAPortOfLoopback) {
  RunningCommand run(ranks_of_script(2, "exec sleep 100", {"--metrics-port", "0"}));
  const std::string address = metrics_address(run);
  ASSERT_TRUE(address.starts_with("127.0.0.1:")) << run.err();
  std::string answer;
  EXPECT_TRUE(soon([&] {  // A process has no memory for a moment before its program runs.
    answer = ask_for_metrics(address);
    return contains(answer, "lockstep_rank_up{rank=\"1\"} 1\n") &&
           !contains(answer, "lockstep_rank_resident_memory_bytes{rank=\"1\"} 0\n");
  })) << answer;
  EXPECT_TRUE(answer.starts_with("HTTP/1.1 200 OK\r\n")) << answer;

  const Finished second = run_command(ranks_of_script(1, "exit 0", {"--metrics-port", address}));
  EXPECT_EQ(second.code, 64);
  EXPECT_TRUE(contains(second.err, "process " + std::to_string(only_child_of(run.pid()))))
      << second.err;
}

}  // namespace
}  // namespace lockstep::test::lockstep_run_test
