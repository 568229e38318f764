// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/variables.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/job/launchers.h"

namespace lockstep::job::variables_test {
namespace {

TEST(Slurm, TheFirstNameOfANodeListIsFound) {
  struct Case {
    const char* list;
    const char* first;
  };
  for (const Case& each : {Case{"node1", "node1"},
                           {"node[01-03,07],gpu1", "node01"},
                           {"gpu1,node[01-03]", "gpu1"},
                           {"node[7,9-12]", "node7"},
                           {"rack[1-2]node[3-4]", "rack1node3"},
                           {"cn[001-128]-ib0", "cn001-ib0"},
                           {"10-0-0-[5-9]", "10-0-0-5"},
                           {"a[0-1].cluster.example", "a0.cluster.example"}})
    EXPECT_EQ(first_of_node_list(each.list), each.first);
}

TEST(Slurm, RejectsAMalformedNodeList) {
  for (const char* wrong : {"", ",node1", "node[1-2", "[]"})
    EXPECT_THROW(first_of_node_list(wrong), Error) << wrong;
}

TEST(Slurm, TasksAreCountedNodeByNode) {
  struct Case {
    const char* tasks;
    int node;
    int expected;
  };
  for (const Case& each : {Case{"4", 0, 4},
                           {"2(x3),1", 0, 2},
                           {"2(x3),1", 2, 2},
                           {"2(x3),1", 3, 1},
                           {"1,16(x100),3", 100, 16},
                           {"1,16(x100),3", 101, 3}})
    EXPECT_EQ(tasks_on_node(each.tasks, each.node), each.expected) << each.tasks;
}

TEST(Slurm, RefusesInvalidTasksPerNode) {
  for (const char* wrong :
       {"", "2", "x", "2(x", "2(x3", "2(3)", "2;3", "0,2", "2(x0),2", "2,", "-1,2"})
    EXPECT_THROW(tasks_on_node(wrong, 1), Error) << wrong;
}

TEST(Slurm, StepsOfNeighbouringJobsHavePortsOfTheirOwn) {
  std::set<int> ports;
  for (std::uint64_t job = 1'000'000; job < 1'000'010; ++job)
    for (std::uint64_t step = 0; step < 60; ++step) ports.insert(job_port(job, step));
  EXPECT_EQ(ports.size(), 600U);
  EXPECT_GE(*ports.begin(), 20'000);
  EXPECT_LT(*ports.rbegin(), 32'768);
  EXPECT_EQ(job_port(7, 1), job_port(7, 1));
}

TEST(Incarnation, IsANumberOfStarts) {
  constexpr const char* key = "LOCKSTEP_INCARNATION";
  ::unsetenv(key);
  EXPECT_EQ(earlier_starts(), 0);
  ::setenv(key, "3", 1);
  EXPECT_EQ(earlier_starts(), 3);
  for (const char* wrong : {"-1", "3x", "99999999999"}) {
    ::setenv(key, wrong, 1);
    EXPECT_THROW(earlier_starts(), Error) << wrong;
  }
  ::unsetenv(key);
}

TEST(StragglerLimit, IsAPositiveNumberOfMilliseconds) {
  constexpr const char* key = "LOCKSTEP_STRAGGLER_MS";
  ::unsetenv(key);
  EXPECT_EQ(straggler_limit(), std::nullopt);
  ::setenv(key, "2500", 1);
  EXPECT_EQ(straggler_limit(), std::chrono::milliseconds(2500));
  for (const char* wrong : {"0", "-1", "3x", "99999999999"}) {
    ::setenv(key, wrong, 1);
    EXPECT_THROW(straggler_limit(), Error) << wrong;
  }
  ::unsetenv(key);
}

}  // namespace
}  // namespace lockstep::job::variables_test
