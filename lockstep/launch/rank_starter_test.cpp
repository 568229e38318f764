// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/rank_starter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/launch/rendezvous_end.h"

namespace lockstep::launch::rank_starter_test {
namespace {

RankPlace place() {
  RankPlace place;
  place.local_rank = 1;
  place.local_world_size = 2;
  place.round.attempt = 3;
  place.round.restarts = 2;
  place.round.node = 1;
  place.round.nodes = 2;
  place.round.first_rank = 1;
  place.round.world_size = 4;
  place.round.job_id = "abc";
  place.round.master_addr = "10.0.0.1";
  place.round.master_port = 1234;
  place.max_restarts = 5;
  place.error_file = "/logs/error.json";
  place.agent_fd = 7;
  place.threads = 3;
  return place;
}

std::vector<std::string> environment(const RankPlace& of,
                                     const std::vector<const char*>& inherited = {nullptr}) {
  return environment_of(of, inherited.data());
}

bool has(const std::vector<std::string>& environment, const std::string& entry) {
  return std::count(environment.begin(), environment.end(), entry) == 1;
}

TEST(Environment, HasWhatTorchrunSets) {
  const auto got = environment(place());
  for (const char* entry : {"RANK=2",
                            "LOCAL_RANK=1",
                            "WORLD_SIZE=4",
                            "LOCAL_WORLD_SIZE=2",
                            "GROUP_RANK=1",
                            "GROUP_WORLD_SIZE=2",
                            "ROLE_RANK=2",
                            "ROLE_WORLD_SIZE=4",
                            "ROLE_NAME=default",
                            "MASTER_ADDR=10.0.0.1",
                            "MASTER_PORT=1234",
                            "TORCHELASTIC_RESTART_COUNT=2",
                            "TORCHELASTIC_MAX_RESTARTS=5",
                            "TORCHELASTIC_RUN_ID=abc",
                            "TORCHELASTIC_USE_AGENT_STORE=False",
                            "TORCHELASTIC_ERROR_FILE=/logs/error.json",
                            "OMP_NUM_THREADS=3",
                            "GOMP_SPINCOUNT=10000",
                            "LOCKSTEP_JOB_ID=abc",
                            "LOCKSTEP_ATTEMPT=3",
                            "LOCKSTEP_AGENT_FD=7",
                            "MALLOC_MMAP_THRESHOLD_=1073741824",
                            "MALLOC_TRIM_THRESHOLD_=1099511627776",
                            "GLIBC_TUNABLES=glibc.malloc.hugetlb=1"})
    EXPECT_TRUE(has(got, entry)) << entry;
  EXPECT_EQ(got.size(), 24U);
}

TEST(Environment, KeepsWhatTheUserHasSetAndReplacesAnOuterLaunchers) {
  const auto got =
      environment(place(), {"OMP_NUM_THREADS=8", "HOME=/h", "EMPTY=", "EQUALS=a=b", "RANK=9",
                            "LOCKSTEP_AGENT_FD=3", "LOCKSTEP_TERMINAL=80", "LOCKSTEP_STORE=h:1",
                            "LOCKSTEP_JOB_TOKEN=secret", nullptr});
  for (const char* entry :
       {"OMP_NUM_THREADS=8", "HOME=/h", "EMPTY=", "EQUALS=a=b", "RANK=2", "LOCKSTEP_AGENT_FD=7"})
    EXPECT_TRUE(has(got, entry)) << entry;
  EXPECT_FALSE(has(got, "LOCKSTEP_TERMINAL=80")) << "stderr is not a terminal";
  EXPECT_FALSE(has(got, "LOCKSTEP_STORE=h:1")) << "a job of one agent has none";
  EXPECT_FALSE(has(got, "LOCKSTEP_JOB_TOKEN=secret")) << "it would be in every dump";
}

TEST(Environment, LeavesMallocAloneWhenTheUserHasSetAnythingOfIt) {
  for (const char* set :
       {"MALLOC_ARENA_MAX=2", "GLIBC_TUNABLES=glibc.malloc.tcache_count=0", "GLIBC_TUNABLES="}) {
    const auto got = environment(place(), {set, nullptr});
    EXPECT_TRUE(has(got, set));
    EXPECT_EQ(got.size(), 22U);
  }
}

TEST(Environment, LeavesTheWaitsOfThreadsAloneWhenTheUserHasSetThem) {
  const auto passive = environment(place(), {"OMP_WAIT_POLICY=PASSIVE", nullptr});
  EXPECT_EQ(
      std::ranges::count_if(
          passive, [](const std::string& entry) { return entry.starts_with("GOMP_SPINCOUNT"); }),
      0);
  EXPECT_TRUE(has(environment(place(), {"GOMP_SPINCOUNT=7", nullptr}), "GOMP_SPINCOUNT=7"));
}

TEST(Environment, ContainsTheWidthOfTheTerminal) {
  RankPlace shown = place();
  shown.columns = 76;
  EXPECT_TRUE(has(environment(shown), "LOCKSTEP_TERMINAL=76"));
}

TEST(Environment, NoTwoJobsHaveTheSameId) {
  const std::string id = random_job_id();
  EXPECT_EQ(id.size(), 32U);
  EXPECT_EQ(id.find_first_not_of("0123456789abcdef"), id.npos);
  EXPECT_NE(id, random_job_id());
}

struct Refused {
  StartFailure failure;
  std::string program;
  const char* text;
  int exit_code;
};

// Failures that the user can fix, or the system's.
const Refused refusals[] = {
    {{"setpgid", EPERM},
     "/bin/sh",
     "the system refused to start rank 2 (setpgid): Operation not permitted",
     exit_system},
    {{"prctl(PR_SET_PDEATHSIG)", EINVAL},
     "/bin/sh",
     "the system refused to start rank 2 (prctl(PR_SET_PDEATHSIG)): Invalid argument",
     exit_system},
    {{"execve", ENOMEM},
     "/bin/sh",
     "the system refused to start rank 2 (execve): Cannot allocate memory",
     exit_system},
    {{"execve", EACCES}, "/bin/x", "executing /bin/x: Permission denied", exit_not_executable},
    {{"execve", ENOEXEC},
     "/bin/x",
     "executing /bin/x: Exec format error; a script needs a first line with its interpreter, such "
     "as #!/bin/sh",
     exit_not_executable},
    {{"execve", ENOEXEC},
     "/bin/x.py",
     "executing /bin/x.py: Exec format error; put `python3` before it, or make #!/usr/bin/env "
     "python3 its first line",
     exit_not_executable},
    {{"execve", ENOEXEC},
     "/proc/self/exe",
     "executing /proc/self/exe: Exec format error; it is a program for another kind of processor",
     exit_not_executable},
    {{"execve", ENOENT}, "/bin/x", "executing /bin/x: No such file or directory", exit_not_found},
    {{"execve", ENOENT},
     "/bin/sh",
     "executing /bin/sh: No such file or directory; the file exists, but the interpreter that it "
     "names does not",
     exit_not_found},
};

TEST(StartFailure, NamesTheCallAndWhetherTheProgramIsTheCause) {
  for (const auto& [failure, program, text, exit_code] : refusals) {
    EXPECT_EQ(describe(failure, 2, program), text);
    EXPECT_EQ(exit_code_of(failure), exit_code) << text;
  }
}

TEST(Environment, ShowsALostRanksProcessHowOftenItHasStarted) {
  RankPlace again = place();
  again.continues = true;
  EXPECT_TRUE(has(environment(again), "LOCKSTEP_ON_FAILURE=continue"));
  again.incarnation = 2;
  EXPECT_TRUE(has(environment(again), "LOCKSTEP_INCARNATION=2"));
  again.straggler_limit = std::chrono::milliseconds(2500);
  EXPECT_TRUE(has(environment(again), "LOCKSTEP_STRAGGLER_MS=2500"));
  const auto other =
      environment(place(), {"LOCKSTEP_ON_FAILURE=continue", "LOCKSTEP_INCARNATION=9",
                            "LOCKSTEP_LEAVE_OUT_STRAGGLERS=9", "LOCKSTEP_STRAGGLER_MS=9", nullptr});
  EXPECT_EQ(other.size(), 24U) << "they are those of an outer launcher";
}

}  // namespace
}  // namespace lockstep::launch::rank_starter_test
