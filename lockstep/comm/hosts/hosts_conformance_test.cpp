// Every engine over the whole conformance suite: alone, and between hosts with shared memory inside.

// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>

#include "lockstep/comm/conformance.h"
#include "lockstep/comm/hosts/across_hosts.h"

namespace lockstep {
namespace {

using namespace std::chrono_literals;
using test::HostLayout;
using test::Rank;
using test::Ranks;

const Ranks whole_suite("whole conformance suite across hosts", [](const Rank& rank) {
  ProcessGroup group = test::join_across_hosts(rank);
  EXPECT_EQ(group.backend(), std::getenv("LOCKSTEP_BACKEND"));
  for (const test::Conformance& test : test::conformance_suite()) {
    SCOPED_TRACE(test.name);
    test.body(group);
  }
  destroy_process_group(group);
});

struct Case {
  const char* engine;
  HostLayout layout;
};

std::string name_of(const testing::TestParamInfo<Case>& info) {
  return std::string(info.param.engine) +
         (info.param.layout.backend.starts_with("shm") ? "BetweenHosts_" : "Alone_") +
         info.param.layout.hosts;
}

class Engines : public testing::TestWithParam<Case> {
 protected:
  ~Engines() override { HostLayout::unset(); }
};

TEST_P(Engines, EqualASerialComputation) {
  LOCKSTEP_NEEDS_ENGINE(GetParam().engine);
  GetParam().layout.set();
  EXPECT_TRUE(all_succeeded(whole_suite.run(GetParam().layout.ranks(), 110s)));
}

INSTANTIATE_TEST_SUITE_P(
    Conformance, Engines,
    testing::Values(Case{"gloo", {"aa", "gloo"}}, Case{"gloo", {"aaa", "gloo"}},
                    Case{"gloo", {"aabb", "shm+gloo"}}, Case{"gloo", {"abaab", "shm+gloo"}},
                    Case{"gloo", {"abc", "shm+gloo"}}, Case{"oneccl", {"aa", "oneccl"}},
                    Case{"oneccl", {"aaa", "oneccl"}}, Case{"oneccl", {"aabb", "shm+oneccl"}},
                    Case{"oneccl", {"aab", "shm+oneccl"}}),
    name_of);

// MPI knows only ranks that its launcher has started.
class Mpi : public testing::TestWithParam<HostLayout> {
 protected:
  ~Mpi() override { HostLayout::unset(); }
};

TEST_P(Mpi, EqualsASerialComputation) {
  LOCKSTEP_NEEDS_ENGINE("mpi");
  if (std::system("command -v mpirun >/dev/null") != 0) GTEST_SKIP() << "there is no mpirun";
  GetParam().set();
  std::string command = "timeout 100 mpirun --allow-run-as-root --oversubscribe -n " +
                        std::to_string(GetParam().ranks());
  for (const std::string& word : whole_suite.command()) command += " '" + word + "'";
  EXPECT_EQ(std::system(command.c_str()), 0) << command;
}

INSTANTIATE_TEST_SUITE_P(Conformance, Mpi,
                         testing::Values(HostLayout{"aa", "mpi"}, HostLayout{"aaa", "mpi"},
                                         HostLayout{"aabb", "shm+mpi"},
                                         HostLayout{"abaab", "shm+mpi"}),
                         [](const auto& test) {
                           return (test.param.backend == "mpi" ? "Alone_" : "BetweenHosts_") +
                                  test.param.hosts;
                         });

}  // namespace
}  // namespace lockstep
