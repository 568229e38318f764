// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/processes.h"
#include "lockstep/comm/group_hooks.h"
#include "lockstep/job/record.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"
#include "tests/rigs/across_hosts.h"

namespace lockstep::comm::fork_test {
namespace {

using namespace std::chrono_literals;
using test::fault_of;
using test::HostLayout;
using test::Rank;
using test::Ranks;

int status_of_child(const std::function<void()>& act) {
  const pid_t child = ::fork();
  if (child == 0) {
    act();
    ::_exit(testing::Test::HasFailure() ? 2 : 0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

void expect_sum(const ProcessGroup& group) {
  std::vector<float> values(1000, 1);
  group.all_reduce(buffer_of(values));
  EXPECT_EQ(values, std::vector<float>(1000, static_cast<float>(group.size())));
}

void expect_misuse_that_names(pid_t parent, const std::function<void()>& call) {
  std::string text;
  EXPECT_EQ(fault_of(call, &text), Fault::misuse) << text;
  EXPECT_NE(text.find("process " + std::to_string(parent)), text.npos) << text;
}

void expect_every_call_to_be_misuse(ProcessGroup& group, const Work& work) {
  std::vector<float> in(4, 1);
  std::vector<float> out(4 * static_cast<std::size_t>(group.size()), 7);
  const std::vector<std::function<void()>> calls{
      [&] { group.all_reduce(buffer_of(in)); },
      [&] { group.all_reduce_async(buffer_of(in)); },
      [&] { group.all_gather(buffer_of(in), buffer_of(out)); },
      [&] { group.barrier(); },
      [&] { group.monitored_barrier(); },
      [&] { group.send(buffer_of(in), 1 - group.rank()); },
      [&] { group.send_async(buffer_of(in), 1 - group.rank()); },
      [&] { group.recv(buffer_of(in)); },
      [&] { group.recv_async(buffer_of(in)); },
      [&] {
        group.new_group({0, 1});
      },
      [&] { group.split(0); },
      [&] { group.allocate(100); },
      [&] { group.allocate_local(100); },
      [&] { group.allocate_shared(100); },
      [&] { group.on_preemption(); },
      [&] { group.set_step(7); },
      [&] { count_step(group); },
      [&] { group.abort("in its parent's name"); },
      [&] { destroy_process_group(group); },
      [&] { work.wait(); },
      [&] { init_process_group(); },
  };
  for (std::size_t i = 0; i < calls.size(); ++i) {
    SCOPED_TRACE("call " + std::to_string(i));
    expect_misuse_that_names(::getppid(), calls[i]);
  }
  EXPECT_EQ(out, std::vector<float>(out.size(), 7)) << "memory was touched";
}

const Ranks calls_in_a_child("calls in a child", [](const Rank& rank) {
  ProcessGroup group = init_process_group();
  const Work work = group.barrier_async();  // Starts the thread of asynchronous calls.
  work.wait();
  if (rank.rank == 0) {
    EXPECT_EQ(status_of_child([&] { expect_every_call_to_be_misuse(group, work); }), 0);
  }
  expect_sum(group);
  destroy_process_group(group);
});

TEST(Fork, EveryCallOfAChildIsMisuseThatNamesItsParent) {
  EXPECT_TRUE(all_succeeded(calls_in_a_child.run(2, 20s)));
}

// On every rank: data that a child sends in its parent's name would be missing, or extra, on
// another rank.
const Ranks sums_in_children("sums in children", [](const Rank&) {
  ProcessGroup group = init_process_group();
  const auto act = [&] { expect_misuse_that_names(::getppid(), [&] { expect_sum(group); }); };
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(status_of_child(act), 0);
    expect_sum(group);
  }
  destroy_process_group(group);
});

TEST(Fork, ItsParentsCollectivesGoOnWithTheRightSums) {
  EXPECT_TRUE(all_succeeded(sums_in_children.run(3, 20s)));
}

// A handle that exit() destroys, in the child too.
std::optional<ProcessGroup>& kept_group() {
  static std::optional<ProcessGroup> group;
  return group;
}

void let_a_child_exit(const Rank& rank) {
  ProcessGroup& group = *kept_group();
  expect_sum(group);  // Across hosts this makes an engine, which has its own thread.
  group.barrier_async().wait();
  if (rank.rank == 0) {
    const auto begin = Clock::now();
    EXPECT_EQ(status_of_child([] { std::exit(0); }), 0);
    EXPECT_LT(seconds_since(begin), 10) << "it waited for its parent's threads";
  }
  expect_sum(group);
  destroy_process_group(group);
}

const Ranks exits("a child exits", [](const Rank& rank) {
  kept_group() = init_process_group();
  let_a_child_exit(rank);
});

TEST(Fork, AChildThatExitsInOrderHarmsNobody) { EXPECT_TRUE(all_succeeded(exits.run(2, 20s))); }

const Ranks exits_across_hosts("a child exits across hosts", [](const Rank& rank) {
  kept_group() = test::join_across_hosts(rank);
  let_a_child_exit(rank);
});

TEST(Fork, AChildThatExitsInOrderHarmsNobodyOnOtherHosts) {
  LOCKSTEP_NEEDS_ENGINE("gloo");
  HostLayout{"ab", "gloo"}.set();
  EXPECT_TRUE(all_succeeded(exits_across_hosts.run(2, 20s)));
  HostLayout::unset();
}

void record_another() {
  record_exception(std::make_exception_ptr(std::runtime_error("a child's own, caught")));
}

const Ranks throws("a child throws", [](const Rank& rank) {
  const auto file = rank.scratch / ("error_file." + std::to_string(rank.rank));
  ::setenv("TORCHELASTIC_ERROR_FILE", file.c_str(), 1);
  ProcessGroup group = init_process_group();
  if (rank.rank == 0) {
    const rlimit no_core{0, 0};
    ::setrlimit(RLIMIT_CORE, &no_core);
    const int status = status_of_child([] {
      try {
        throw std::runtime_error("a child's own");
      } catch (...) {
        std::terminate();
      }
    });
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT) << status;
    EXPECT_EQ(status_of_child(record_another), 0);
    EXPECT_FALSE(std::filesystem::exists(file)) << "it is its parent's";
  }
  expect_sum(group);
  destroy_process_group(group);
  if (rank.rank == 0) {  // Its parent is no longer a rank.
    EXPECT_EQ(status_of_child(record_another), 0);
    EXPECT_TRUE(std::filesystem::exists(file));
  }
});

TEST(Fork, AnExceptionInAChildIsNotReportedForItsRank) {
  EXPECT_TRUE(all_succeeded(throws.run(2, 20s)));
}

// Holds for every system call that makes a child, and for the child's children.
TEST(Fork, AChildKnowsThatItIsNotItsParent) {
  const pid_t parent = this_process();
  EXPECT_EQ(parent, ::getpid());
  const auto child = static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
  if (child == 0) {
    const bool knows = this_process() == ::getpid() && this_process() != parent;
    const pid_t grandchild = ::fork();
    if (grandchild == 0) ::_exit(knows && this_process() == ::getpid() ? 0 : 1);
    int status = 1;
    ::waitpid(grandchild, &status, 0);
    ::_exit(status == 0 ? 0 : 1);
  }
  int status = 1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(this_process(), parent);
}

}  // namespace
}  // namespace lockstep::comm::fork_test
