// Runs the suite on every engine: alone, and between hosts with shared memory inside.

// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cstdlib>
#include <numeric>
#include <vector>

#include "tests/rigs/across_hosts.h"
#include "tests/rigs/conformance.h"

namespace lockstep::comm::hosts_conformance_test {
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

// The common value of all ranks at element i, before a collective of large buffers.
double common(std::size_t i) { return static_cast<double>(i % 1009); }

void expect_each(const double* data, std::size_t count, double times, double plus) {
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < count; ++i) wrong += data[i] != times * common(i) + plus ? 1 : 0;
  EXPECT_EQ(wrong, 0U);
}

const Ranks large_buffers("large buffers across hosts", [](const Rank& rank) {
  ProcessGroup group = test::join_across_hosts(rank);
  // More than is copied, or in flight, at a time, and not a multiple of that.
  const std::size_t count = (std::size_t{17} << 20) / sizeof(double) + 3;
  const RegisteredMemory registered = group.allocate(count * sizeof(double));
  std::vector<double> any(count);
  // One rank's memory need not be copied, while all others' must be.
  double* data = group.rank() == 0 ? static_cast<double*>(registered.data()) : any.data();
  const Buffer buffer{.data = data, .count = count, .dtype = DType::float64};
  const auto fill = [&] {
    for (std::size_t i = 0; i < count; ++i) data[i] = common(i) + group.rank();
  };
  const int root = group.size() - 1;
  const double sum_of_ranks = group.size() * root / 2.0;
  fill();
  group.all_reduce(buffer);
  expect_each(data, count, group.size(), sum_of_ranks);
  fill();
  group.reduce(buffer, root);
  if (group.rank() == root) expect_each(data, count, group.size(), sum_of_ranks);
  fill();
  group.broadcast(buffer, root);
  expect_each(data, count, 1, root);
  destroy_process_group(group);
});

void expect_sum_of_ranks(const ProcessGroup& group) {
  std::vector<double> values(1000, group.rank());
  group.all_reduce({.data = values.data(), .count = values.size(), .dtype = DType::float64});
  EXPECT_EQ(values, std::vector<double>(1000, group.size() * (group.size() - 1) / 2.0));
}

// The store and the connections keep messages of the first group.
const Ranks one_name("groups of one name across hosts", [](const Rank& rank) {
  ProcessGroup world = test::join_across_hosts(rank);
  std::vector<int> all(static_cast<std::size_t>(world.size()));
  std::iota(all.begin(), all.end(), 0);
  ProcessGroup kept = world.group_of(all, "part");
  for (const char* const name : {"world.part#2", "world.part#3"}) {
    ProcessGroup group = world.group_of(all, "part");
    EXPECT_EQ(group.name(), name);
    expect_sum_of_ranks(group);
    expect_sum_of_ranks(kept);
    leave_process_group(group);
  }
  if (world.rank() == 0 || world.rank() == world.size() - 1) {
    ProcessGroup ends = world.group_of({0, world.size() - 1}, "part");
    EXPECT_EQ(ends.name(), "world.part");
    expect_sum_of_ranks(ends);
    leave_process_group(ends);
  }
  expect_sum_of_ranks(kept);
  destroy_process_group(world);
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

TEST_P(Engines, LeaveNothingOfALargeBufferOut) {
  LOCKSTEP_NEEDS_ENGINE(GetParam().engine);
  GetParam().layout.set();
  EXPECT_TRUE(all_succeeded(large_buffers.run(GetParam().layout.ranks(), 110s)));
}

TEST_P(Engines, ServeGroupsOfOneName) {
  LOCKSTEP_NEEDS_ENGINE(GetParam().engine);
  GetParam().layout.set();
  EXPECT_TRUE(all_succeeded(one_name.run(GetParam().layout.ranks(), 110s)));
}

INSTANTIATE_TEST_SUITE_P(Conformance, Engines,
                         testing::Values(Case{"gloo", {"aaa", "gloo"}},
                                         Case{"gloo", {"aabb", "shm+gloo"}},
                                         Case{"gloo", {"abaab", "shm+gloo"}},
                                         Case{"oneccl", {"aaa", "oneccl"}},
                                         Case{"oneccl", {"aabb", "shm+oneccl"}}),
                         name_of);

// MPI knows only ranks that its launcher started.
class Mpi : public testing::TestWithParam<HostLayout> {
 protected:
  void SetUp() override {
    LOCKSTEP_NEEDS_ENGINE("mpi");
    if (std::system("command -v mpirun >/dev/null") != 0) GTEST_SKIP() << "there is no mpirun";
    GetParam().set();
  }
  ~Mpi() override { HostLayout::unset(); }

  static void run(const Ranks& ranks) {
    std::string command = "timeout 100 mpirun --allow-run-as-root --oversubscribe -n " +
                          std::to_string(GetParam().ranks());
    for (const std::string& word : ranks.command()) command += " '" + word + "'";
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
  }
};

TEST_P(Mpi, EqualsASerialComputation) { run(whole_suite); }

TEST_P(Mpi, LeavesNothingOfALargeBufferOut) { run(large_buffers); }

INSTANTIATE_TEST_SUITE_P(Conformance, Mpi,
                         testing::Values(HostLayout{"aaa", "mpi"}, HostLayout{"abaab", "shm+mpi"}),
                         [](const auto& test) {
                           return (test.param.backend == "mpi" ? "Alone_" : "BetweenHosts_") +
                                  test.param.hosts;
                         });

}  // namespace
}  // namespace lockstep::comm::hosts_conformance_test
