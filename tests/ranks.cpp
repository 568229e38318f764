// SPDX-License-Identifier: Apache-2.0
#include "tests/ranks.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/job/environment.h"
#include "tests/rank_setup.h"

namespace lockstep::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* flag = "--lockstep-rank";

std::map<std::string, Body>& bodies() {
  static std::map<std::string, Body> all;
  return all;
}

std::filesystem::path output_of(const Rank& rank) {
  return rank.scratch / ("output." + std::to_string(rank.rank));
}

void set_environment(const Rank& rank) {
  const auto set = [](const char* key, const std::string& value) {
    ::setenv(key, value.c_str(), 1);
  };
  set("RANK", std::to_string(rank.rank));
  set("LOCAL_RANK", std::to_string(rank.rank));
  set("WORLD_SIZE", std::to_string(rank.world_size));
  set("LOCAL_WORLD_SIZE", std::to_string(rank.world_size));
  set("MASTER_ADDR", "127.0.0.1");
  set("MASTER_PORT", "29500");
  set("LOCKSTEP_JOB_ID", rank.scratch.filename().string());  // Unique, so jobs cannot meet.
  set("OMP_NUM_THREADS", "1");
  ::unsetenv("LOCKSTEP_AGENT_FD");
}

pid_t start(const std::string& name, const Rank& rank) {
  const std::string number = std::to_string(rank.rank);
  const std::string size = std::to_string(rank.world_size);
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  set_up(rank);
  ::execl("/proc/self/exe", "rank", flag, name.c_str(), number.c_str(), size.c_str(),
          rank.scratch.c_str(), nullptr);
  ::_exit(127);
}

std::string contents_of(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::set<std::string> names_in_dev_shm() {
  std::set<std::string> names;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", none))
    if (entry.path().filename().string().find("lockstep") != std::string::npos)
      names.insert(entry.path().filename());
  return names;
}

// Leaves the process as a zombie, so that its peers can still see how it ended.
void wait_for(pid_t pid, Clock::time_point deadline) {
  siginfo_t info{};
  while (::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT | WNOHANG) == 0 &&
         info.si_pid == 0) {
    if (Clock::now() >= deadline) ::kill(pid, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// In this process and, before a fork, in its parent.
int failures() {
  const testing::TestInfo* const test = testing::UnitTest::GetInstance()->current_test_info();
  if (test == nullptr) return testing::Test::HasFailure() ? 1 : 0;
  int count = 0;
  for (int i = 0; i < test->result()->total_part_count(); ++i)
    count += test->result()->GetTestPartResult(i).failed() ? 1 : 0;
  return count;
}

}  // namespace

void set_up(const Rank& rank) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int file = ::open(output_of(rank).c_str(), O_CREAT | O_WRONLY | O_APPEND, 0600);
  ::dup2(file, STDOUT_FILENO);
  ::dup2(file, STDERR_FILENO);
  set_environment(rank);
}

std::vector<Exit> wait_for_all(const std::vector<pid_t>& pids, const std::filesystem::path& scratch,
                               Clock::time_point deadline) {
  for (const pid_t pid : pids) wait_for(pid, deadline);
  const int world_size = static_cast<int>(pids.size());
  std::vector<Exit> exits;
  for (int rank = 0; rank < world_size; ++rank) {
    int status = 0;
    ::waitpid(pids[static_cast<std::size_t>(rank)], &status, 0);
    exits.push_back({rank, WIFEXITED(status) ? WEXITSTATUS(status) : -1,
                     WIFSIGNALED(status) ? WTERMSIG(status) : 0,
                     contents_of(output_of({rank, world_size, scratch}))});
  }
  return exits;
}

ScratchDirectory::ScratchDirectory() {
  std::string pattern = std::filesystem::temp_directory_path() / "lockstep-test-XXXXXX";
  if (::mkdtemp(pattern.data()) == nullptr) throw_errno("mkdtemp " + pattern);
  path_ = pattern;
}

ScratchDirectory::~ScratchDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

Ranks::Ranks(std::string name, Body body) : name_(std::move(name)) {
  check(bodies().emplace(name_, std::move(body)).second, "two bodies are named " + name_);
}

std::vector<Exit> Ranks::run(int world_size, std::chrono::milliseconds limit) const {
  const ScratchDirectory scratch;
  const auto names_before = names_in_dev_shm();
  const auto deadline = Clock::now() + limit;

  std::vector<pid_t> pids;
  for (int rank = 0; rank < world_size; ++rank)
    pids.push_back(start(name_, {rank, world_size, scratch.path()}));

  std::vector<Exit> exits = wait_for_all(pids, scratch.path(), deadline);
  EXPECT_EQ(names_in_dev_shm(), names_before) << "a name was left in /dev/shm";
  return exits;
}

std::vector<std::string> Ranks::command() const {
  return {std::filesystem::read_symlink("/proc/self/exe"), flag, name_, "", "", ""};
}

int exit_code_of(const Body& body, const Rank& rank) {
  const int inherited = failures();
  try {
    body(rank);
    return failures() > inherited ? 2 : 0;
  } catch (const Error& error) {
    std::fprintf(stderr, "[rank %d] %s\n", rank.rank, error.what());
    return 10 + static_cast<int>(error.fault());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "[rank %d] %s\n", rank.rank, error.what());
    return 1;
  }
}

bool all_succeeded(const std::vector<Exit>& exits) {
  bool ok = true;
  for (const Exit& exit : exits) {
    if (exit.code == 0) continue;
    std::fprintf(stderr, "rank %d: exit code %d, signal %d\n%s", exit.rank, exit.code, exit.signal,
                 exit.output.c_str());
    ok = false;
  }
  return ok;
}

void become_rank_if_asked(int argc, char** argv) {
  if (argc != 6 || std::strcmp(argv[1], flag) != 0) return;
  Rank rank{std::atoi(argv[3]), std::atoi(argv[4]), argv[5]};
  if (rank.scratch.empty()) {  // A launcher started us, not Ranks::run().
    const LaunchEnvironment who = read_environment();
    rank = {who.rank, who.world_size, {}};
  }
  std::exit(exit_code_of(bodies().at(argv[2]), rank));
}

}  // namespace lockstep::test
