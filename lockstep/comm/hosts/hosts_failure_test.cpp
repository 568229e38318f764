// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/comm/hosts/hosts_backend.h"
#include "lockstep/comm/hosts/join_hosts.h"
#include "tests/fault_of.h"
#include "tests/rigs/across_hosts.h"
#include "tests/rigs/one_record.h"
#include "tests/rigs/rank_zero_ends.h"
#include "tests/soon.h"

namespace lockstep::comm::hosts_failure_test {
namespace {

using namespace std::chrono_literals;
using test::await_file;
using test::Exit;
using test::fault_of;
using test::HostLayout;
using test::Rank;
using test::Ranks;

constexpr std::size_t some = 100'000;

class AcrossHosts : public testing::TestWithParam<std::string> {
 protected:
  AcrossHosts() { HostLayout{"aabb", GetParam()}.set(); }
  ~AcrossHosts() override { HostLayout::unset(); }
  std::string engine() const { return GetParam().substr(GetParam().find('+') + 1); }
};

void expect_survivors(const std::vector<Exit>& exits, int dead) {
  for (const Exit& exit : exits)
    EXPECT_TRUE(exit.rank == dead || exit.code == 0) << exit.rank << ": " << exit.output;
}

// The steady clock is the same for all processes of this machine.
void write_now(const std::filesystem::path& file) {
  std::ofstream(file.string() + ".new") << Clock::now().time_since_epoch().count();
  std::filesystem::rename(file.string() + ".new", file);
}

double seconds_since_written(const std::filesystem::path& file) {
  std::int64_t then = 0;
  std::ifstream(file) >> then;
  return seconds_since(Clock::time_point(Clock::duration(then)));
}

// Rank `dying` waits until all others have come so far: their calls before its death succeed.
void meet_before_the_end_of(int dying, const Rank& rank) {
  std::vector<int> others;
  for (int other = 0; rank.rank == dying && other < rank.world_size; ++other)
    if (other != dying) others.push_back(other);
  test::wait_until_done(rank, others);
}

// Runs until an Error ends it. The Error must name the death written in the scratch folder, and
// come soon after it: long before a timeout.
void reduce_until(const ProcessGroup& group, const Rank& rank, int dead, int signal) {
  std::vector<float> values(some, 1);
  try {
    for (int i = 0; i < 1'000'000; ++i) group.all_reduce(buffer_of(values));
    ADD_FAILURE() << "nobody noticed";
  } catch (const Error& error) {
    EXPECT_LT(seconds_since_written(rank.scratch / "death"), 5.0) << error.what();
    ASSERT_EQ(error.fault(), Fault::peer_lost) << error.what();
    ASSERT_TRUE(error.failure()) << error.what();
    EXPECT_EQ(error.failure()->rank, dead) << error.what();
    EXPECT_GT(error.failure()->pid, 0);
    EXPECT_TRUE(signal == 0 || error.failure()->signal == signal) << error.what();
  }
}

const Ranks sends_and_ends("sends and ends across hosts", [](const Rank& rank) {
  ProcessGroup world = test::join_across_hosts(rank);
  test::expect_messages_outlive_rank_zero(world, rank.scratch);
});

TEST_P(AcrossHosts, MessagesSentBeforeARankLeavesOutliveItsProcess) {
  LOCKSTEP_NEEDS_ENGINE(engine());
  for (const char* hosts : {"aab", "abb", "aba", "abc"}) {
    HostLayout{hosts, GetParam()}.set();
    EXPECT_TRUE(all_succeeded(sends_and_ends.run(3))) << hosts;
  }
}

const Ranks killed("killed across hosts", [](const Rank& rank) {
  ProcessGroup group = test::join_across_hosts(rank);
  std::vector<float> values(some, 1);
  for (int i = 0; i < 5; ++i) group.all_reduce(buffer_of(values));
  meet_before_the_end_of(2, rank);
  if (rank.rank == 2) {
    write_now(rank.scratch / "death");
    ::raise(SIGKILL);
  }
  reduce_until(group, rank, 2, SIGKILL);
});

// Rank 3 shares its host, so it detects the signal and reports it to the other host.
TEST_P(AcrossHosts, AKilledRankIsNamedWithItsSignalOnEveryHost) {
  LOCKSTEP_NEEDS_ENGINE(engine());
  const auto exits = killed.run(4, 30s);
  EXPECT_EQ(exits[2].signal, SIGKILL);
  expect_survivors(exits, 2);
}

const Ranks whole_host_killed("a whole host killed", [](const Rank& rank) {
  ProcessGroup group = test::join_across_hosts(rank);
  std::vector<float> values(some, 1);
  for (int i = 0; i < 5; ++i) group.all_reduce(buffer_of(values));
  meet_before_the_end_of(1, rank);
  if (rank.rank == 1) {
    write_now(rank.scratch / "death");
    ::raise(SIGKILL);
  }
  reduce_until(group, rank, 1, 0);
});

TEST_P(AcrossHosts, ALostRankAloneOnItsHostIsNamedBySurvivors) {
  LOCKSTEP_NEEDS_ENGINE(engine());
  HostLayout{"aba", GetParam()}.set();
  expect_survivors(whole_host_killed.run(3, 30s), 1);
}

// Rank 1 detects the death, because the killed rank was on its host, and leaves the group.
const Ranks left_for_a_message("left for a loss that ends a message between hosts",
                               [](const Rank& rank) {
                                 test::expect_the_lost_one_named(
                                     rank, test::join_across_hosts(rank),
                                     [](const ProcessGroup& group) {
                                       std::vector<float> word(1);
                                       group.recv(buffer_of(word), group.rank() - 1);
                                     });
                               });

const Ranks left_for_a_call("left for a loss that ends a call between hosts", [](const Rank& rank) {
  test::expect_the_lost_one_named(rank, test::join_across_hosts(rank),
                                  [](const ProcessGroup& group) { group.barrier(); });
});

TEST_P(AcrossHosts, ARankThatLeavesAfterALossIsNotNamedAsLost) {
  LOCKSTEP_NEEDS_ENGINE(engine());
  HostLayout{"aab", GetParam()}.set();
  expect_survivors(left_for_a_message.run(3, 30s), 0);
  expect_survivors(left_for_a_call.run(3, 30s), 0);
}

const Ranks killed_while_idle("killed while others are in an engine", [](const Rank& rank) {
  ProcessGroup group = test::join_across_hosts(rank);
  std::vector<float> values(some, 1);
  group.all_reduce(buffer_of(values));
  meet_before_the_end_of(3, rank);
  if (rank.rank == 3) {  // The others wait for it in a collective.
    std::this_thread::sleep_for(300ms);
    write_now(rank.scratch / "death");
    ::raise(SIGSEGV);
  }
  reduce_until(group, rank, 3, SIGSEGV);
});

TEST_P(AcrossHosts, ARankThatCrashesWhileOthersWaitIsNamed) {
  LOCKSTEP_NEEDS_ENGINE(engine());
  expect_survivors(killed_while_idle.run(4, 30s), 3);
}

const Ranks computes("computes while a rank of another host dies", [](const Rank& rank) {
  ::setenv("LOCKSTEP_LOG", "info", 1);  // The records' level.
  ProcessGroup group = test::join_across_hosts(rank);
  test::expect_one_record(group, rank.world_size - 2);
});

// In the first layout a rank shares the dead rank's host; in the second, none does.
TEST_P(AcrossHosts, ASurvivorThatWaitsForNobodyWritesOneRecord) {
  LOCKSTEP_NEEDS_ENGINE(engine());
  for (const std::string hosts : {"aabb", "aba"}) {
    HostLayout{hosts, GetParam()}.set();
    const int ranks = static_cast<int>(hosts.size());
    expect_survivors(computes.run(ranks, 30s), ranks - 2);
  }
}

const Ranks differ("differ across hosts", [](const Rank& rank) {
  ProcessGroup group = test::join_across_hosts(rank);
  std::vector<float> values(rank.rank == 3 ? 9 : 8, 7);
  std::string text;
  EXPECT_EQ(fault_of([&] { group.all_reduce(buffer_of(values)); }, &text), Fault::mismatch);
  EXPECT_NE(
      text.find("rank 0 called all_reduce(sum) of 8 float32, rank 3 called all_reduce(sum) of "
                "9 float32"),
      std::string::npos)
      << text;
  EXPECT_EQ(values[0], 7);
});

TEST_P(AcrossHosts, AMismatchIsReportedOnEveryHostBeforeMemoryIsModified) {
  LOCKSTEP_NEEDS_ENGINE(engine());
  EXPECT_TRUE(all_succeeded(differ.run(4, 30s)));
}

// Rank 1 has no slice: it receives the other host's call through rank 0, whose own call differs.
const Ranks differ_here("differ on a host with surplus ranks", [](const Rank& rank) {
  ProcessGroup group = test::join_across_hosts(rank);
  std::vector<float> values(8, 7);
  std::string text;
  const ReduceOp op = rank.rank == 1 ? ReduceOp::max : ReduceOp::sum;
  EXPECT_EQ(fault_of([&] { group.all_reduce(buffer_of(values), op); }, &text), Fault::mismatch)
      << text;
  EXPECT_NE(text.find("rank 1 called all_reduce(max)"), std::string::npos) << text;
});

TEST_P(AcrossHosts, RanksOfOneHostThatDifferAreNamedThereAndElsewhere) {
  LOCKSTEP_NEEDS_ENGINE(engine());
  HostLayout{"aab", GetParam()}.set();
  EXPECT_TRUE(all_succeeded(differ_here.run(3, 30s)));
}

const Ranks drops("drops a sub-group across hosts", [](const Rank& rank) {
  ProcessGroup group = test::join_across_hosts(rank);
  std::optional<ProcessGroup> part = group.split(0);
  part->barrier();
  group.barrier();  // All have left the call of the sub-group.
  if (rank.rank == 2) {
    part.reset();
  } else {
    try {
      part->barrier();
      ADD_FAILURE() << "nobody noticed";
    } catch (const Error& error) {
      EXPECT_EQ(error.fault(), Fault::peer_lost) << error.what();
      EXPECT_NE(std::string(error.what()).find("rank 2 left it"), std::string::npos)
          << error.what();
    }
  }
  group.barrier();  // The group continues.
  destroy_process_group(group);
});

TEST_P(AcrossHosts, ARankThatDropsASubGroupIsNamedAndOthersContinue) {
  LOCKSTEP_NEEDS_ENGINE(engine());
  EXPECT_TRUE(all_succeeded(drops.run(4, 60s)));
}

const Ranks ends_early("destroys a group that others use", [](const Rank& rank) {
  ProcessGroup group = test::join_across_hosts(rank);
  group.barrier();
  std::vector<float> values(some, 1);
  std::string text;
  const Fault fault = fault_of(
      [&] {
        rank.rank == 0 ? group.broadcast(buffer_of(values), 0) : destroy_process_group(group);
      },
      &text);
  EXPECT_EQ(fault, Fault::mismatch) << text;
  EXPECT_NE(text.find("broadcast"), std::string::npos) << text;
});

TEST_P(AcrossHosts, AGroupThatOneRankDestroysAndAnotherUsesIsAMismatch) {
  LOCKSTEP_NEEDS_ENGINE(engine());
  EXPECT_TRUE(all_succeeded(ends_early.run(4, 60s)));
}

const Ranks unlimited("no timeout across hosts", [](const Rank& rank) {
  ProcessGroup group = test::join_across_hosts(rank);
  std::vector<float> values(some, 1);
  if (rank.rank == 1) std::this_thread::sleep_for(4s);
  group.all_reduce(buffer_of(values), ReduceOp::sum, {.timeout = std::chrono::milliseconds::max()});
  EXPECT_EQ(values, std::vector<float>(some, 4));
  destroy_process_group(group);
});

TEST_P(AcrossHosts, ACallWithoutATimeoutWaits) {
  LOCKSTEP_NEEDS_ENGINE(engine());
  EXPECT_TRUE(all_succeeded(unlimited.run(4, 60s)));
}

// Comes when `others` no longer wait. If a whole host is late, its ranks may pass this call and
// fail in the next one.
void expect_to_be_too_late(const ProcessGroup& group, const Rank& rank,
                           const std::vector<int>& others) {
  test::wait_until_done(rank, others);
  std::string text;
  const auto call = [&] {
    while (true) group.barrier();
  };
  EXPECT_EQ(fault_of(call, &text), Fault::timeout) << text;
}

const Ranks late("late across hosts", [](const Rank& rank) {
  ProcessGroup group = test::join_across_hosts(rank);
  group.barrier();
  if (rank.rank == 3) return expect_to_be_too_late(group, rank, {0, 1, 2});
  std::string text;
  EXPECT_EQ(fault_of([&] { group.barrier({.timeout = 2s}); }, &text), Fault::timeout) << text;
  EXPECT_NE(text.find("rank 3"), std::string::npos) << text;
  const bool shares_its_host = rank.rank == 2;
  EXPECT_TRUE(!shares_its_host || text.find("on rank 2: ") != std::string::npos) << text;
  test::wait_until_done(rank, {});
});

TEST_P(AcrossHosts, ALateRankIsNamedOnEveryHost) {
  LOCKSTEP_NEEDS_ENGINE(engine());
  EXPECT_TRUE(all_succeeded(late.run(4, 40s)));
}

constexpr auto short_timeout = 2s;  // Ranks that are not late may still come so much later.
constexpr const char* overrun = "seconds beyond the deadline: ";

std::string text_of_timeout(const ProcessGroup& group) {
  const auto begin = Clock::now();
  std::string text;
  EXPECT_EQ(fault_of([&] { group.barrier({.timeout = short_timeout}); }, &text), Fault::timeout);
  const double beyond = seconds_since(begin) - std::chrono::duration<double>(short_timeout).count();
  EXPECT_LT(beyond, 10) << text;
  std::printf("%s%.3f\n", overrun, beyond);
  return text;
}

double largest_overrun(const std::vector<Exit>& exits) {
  double largest = 0;
  for (const Exit& exit : exits)
    if (const auto at = exit.output.find(overrun); at != std::string::npos)
      largest = std::max(largest, std::stod(exit.output.substr(at + std::strlen(overrun))));
  return largest;
}

// Timeouts must come far less than a second beyond their deadlines. A busy machine may delay a
// rank once, but not each time.
void expect_timeouts_at_their_deadlines(const Ranks& ranks, int size) {
  double least = 1e9;
  for (int i = 0; i < 5 && least >= 0.7; ++i) {
    const auto exits = ranks.run(size, 60s);
    EXPECT_TRUE(all_succeeded(exits));
    least = std::min(least, largest_overrun(exits));
  }
  EXPECT_LT(least, 0.7);
}

const Ranks whole_host_late("a whole host late", [](const Rank& rank) {
  ProcessGroup group = test::join_across_hosts(rank);
  group.barrier();
  const int others = rank.world_size / 2;  // On the first host.
  if (test::host_of_rank(rank.rank) == "b")
    return expect_to_be_too_late(group, rank,
                                 others == 1 ? std::vector<int>{0} : std::vector<int>{0, 1});
  const std::string text = text_of_timeout(group);
  EXPECT_NE(text.find("did not come within 2.0 s"), text.npos) << text;
  test::wait_until_done(rank, {});
});

TEST_P(AcrossHosts, ATimeoutComesAtItsDeadlineWhenAWholeHostIsLate) {
  LOCKSTEP_NEEDS_ENGINE(engine());
  expect_timeouts_at_their_deadlines(whole_host_late, 4);
  HostLayout{"ab", GetParam()}.set();
  expect_timeouts_at_their_deadlines(whole_host_late, 2);
}

// Rank 2 also waits for rank 3, with a later deadline.
const Ranks one_late("one of a host late", [](const Rank& rank) {
  ProcessGroup group = test::join_across_hosts(rank);
  group.barrier();
  if (rank.rank == 3) return expect_to_be_too_late(group, rank, {0, 1, 2});
  std::string text;
  if (rank.rank == 2) {
    EXPECT_EQ(fault_of([&] { group.barrier({.timeout = 20s}); }, &text), Fault::timeout);
  } else {
    std::this_thread::sleep_for(100ms);
    text = text_of_timeout(group);
  }
  const bool is_named = text.find("without rank 3 (pid ") != text.npos;
  EXPECT_TRUE(is_named || text.find(" or rank 3 (pid ") == text.npos) << text;
  EXPECT_NE(text.find("rank 3 (pid "), text.npos) << text;
  test::wait_until_done(rank, {});
});

TEST_P(AcrossHosts, ATimeoutComesAtItsDeadlineAndNamesTheOneThatIsLate) {
  LOCKSTEP_NEEDS_ENGINE(engine());
  expect_timeouts_at_their_deadlines(one_late, 4);
}

// Ranks 1 and 2 share a host. Rank 3, on the third host, gets the report before its own deadline.
const Ranks late_between("late between three hosts", [](const Rank& rank) {
  ProcessGroup group = test::join_across_hosts(rank);
  group.barrier();
  if (rank.rank == 2) return expect_to_be_too_late(group, rank, {0, 1, 3});
  try {
    group.barrier({.timeout = rank.rank == 0 ? short_timeout : 20s});
    ADD_FAILURE() << "nobody noticed";
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::timeout) << error.what();
    EXPECT_EQ(error.ranks(), std::vector<int>{2}) << error.what();
  }
  test::wait_until_done(rank, {});
});

TEST_P(AcrossHosts, OnlyWhoIsLateIsNamedOnAThirdHost) {
  LOCKSTEP_NEEDS_ENGINE(engine());
  HostLayout{"abbc", GetParam()}.set();
  EXPECT_TRUE(all_succeeded(late_between.run(4, 40s)));
}

// Ranks 3 and 4 share the third host, and rank 4 comes to it later than the notice.
const Ranks late_elsewhere("late on another host", [](const Rank& rank) {
  ProcessGroup group = test::join_across_hosts(rank);
  group.barrier();
  if (rank.rank == 2 || rank.rank == 4) return expect_to_be_too_late(group, rank, {0, 1, 3});
  try {
    group.barrier({.timeout = rank.rank == 1 ? short_timeout : 20s});
    ADD_FAILURE() << "nobody noticed";
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::timeout) << error.what();
    EXPECT_EQ(error.ranks(), std::vector<int>{2}) << error.what();
  }
  test::wait_until_done(rank, {});
});

TEST_P(AcrossHosts, OnlyTheLateRankThatOthersWaitedForIsNamed) {
  LOCKSTEP_NEEDS_ENGINE(engine());
  if (GetParam() == "gloo") GTEST_SKIP() << "each rank counts as a host, and waits for all";
  HostLayout{"abbcc", GetParam()}.set();
  EXPECT_TRUE(all_succeeded(late_elsewhere.run(5, 40s)));
}

const Ranks labels_differ("labels differ across hosts", [](const Rank& rank) {
  ProcessGroup group = test::join_across_hosts(rank);
  std::string text;
  const std::string label = rank.rank == 2 ? "bucket 4" : "bucket 3";
  EXPECT_EQ(fault_of([&] { group.barrier({.label = label}); }, &text), Fault::mismatch) << text;
  EXPECT_NE(text.find("rank 0 called barrier, label 'bucket 3', rank 2 called barrier, "
                      "label 'bucket 4'"),
            text.npos)
      << text;
});

TEST_P(AcrossHosts, LabelsThatDifferAreShownOnEveryHost) {
  LOCKSTEP_NEEDS_ENGINE(engine());
  EXPECT_TRUE(all_succeeded(labels_differ.run(4, 30s)));
  HostLayout{"abb", GetParam()}.set();  // With a surplus rank.
  EXPECT_TRUE(all_succeeded(labels_differ.run(3, 30s)));
}

// All ranks detect that labels differ; ranks 2 and 3 are delayed before they send theirs.
const Ranks labels_late("labels come late", [](const Rank& rank) {
  ::setenv("LOCKSTEP_HOST_ID", test::host_of_rank(rank.rank).c_str(), 1);
  LaunchEnvironment who = read_environment();
  InitOptions options;
  options.store = std::make_shared<FileStore>(FileStoreOptions{.path = rank.scratch / "store"});
  LateRanks others(rank.rank, options.warn_after);
  const JoinedHosts joined = join_hosts(who, options, "world", others);
  {
    HostsBackend backend(joined.context, {0, 1, 2, 3}, rank.rank, "world", 10s);
    const std::string label = rank.rank == 3 ? "b" : "a";
    Collective barrier{.signature = {.operation = Operation::barrier},
                       .sequence = 1,
                       .timeout = 10s,
                       .label = label};
    backend.enter(barrier);
    const bool is_punctual = rank.rank < 2;
    barrier.timeout = is_punctual ? 300ms : 4s;
    if (is_punctual) {
      EXPECT_EQ(fault_of([&] { backend.labels(barrier); }), Fault::timeout);
      test::wait_until_done(rank, {});
    } else {
      test::wait_until_done(rank, {0, 1});
      EXPECT_EQ(backend.labels(barrier), (std::vector<std::string>{"a", "a", "a", "b"}));
    }
    joined.context->connections->finish();
  }
  joined.session->finish();
});

TEST_P(AcrossHosts, RanksWithoutLabelsInTimeDoNotMakeOthersTimeOut) {
  LOCKSTEP_NEEDS_ENGINE(engine());
  EXPECT_TRUE(all_succeeded(labels_late.run(4, 30s)));
}

const Ranks aborts("aborts across hosts", [](const Rank& rank) {
  ProcessGroup group = test::join_across_hosts(rank);
  group.barrier();
  if (rank.rank == 0) {
    std::this_thread::sleep_for(200ms);
    group.abort("the input is broken");
    // A rank that leaves within some 20 ms is lost first.
    return test::wait_until_done(rank, {1, 2, 3});
  }
  std::string text;
  EXPECT_EQ(fault_of([&] { group.barrier(); }, &text), Fault::aborted);
  EXPECT_NE(text.find("the input is broken"), std::string::npos) << text;
  test::wait_until_done(rank, {});
});

TEST_P(AcrossHosts, AnAbortReachesEveryHost) {
  LOCKSTEP_NEEDS_ENGINE(engine());
  EXPECT_TRUE(all_succeeded(aborts.run(4, 30s)));
}

const Ranks throws_ranks("throws across hosts", [](const Rank& rank) {
  std::string text;
  const auto train = [&] {
    ProcessGroup group = test::join_across_hosts(rank);
    group.barrier();
    if (rank.rank == 1) throw std::runtime_error("no more input");
    group.barrier();
  };
  if (rank.rank == 1) {
    EXPECT_THROW(train(), std::runtime_error);
    return;
  }
  EXPECT_EQ(fault_of(train, &text), Fault::peer_lost) << text;
  EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
});

TEST_P(AcrossHosts, ARankThatUnwindsIsNamedOnEveryHost) {
  LOCKSTEP_NEEDS_ENGINE(engine());
  EXPECT_TRUE(all_succeeded(throws_ranks.run(4, 30s)));
}

const Ranks two_groups("two groups across hosts", [](const Rank& rank) {
  for (int round = 0; round < 2; ++round) {
    ProcessGroup group = test::join_across_hosts(rank);
    EXPECT_EQ(group.local_size(), 2);
    EXPECT_EQ(group.local_rank(), rank.rank % 2);
    std::vector<double> values(some, rank.rank);
    // Two groups, in opposite orders: they do not wait for each other.
    const ProcessGroup one = group.split(0);
    const ProcessGroup other = group.split(0);
    const auto sum = [&](const ProcessGroup& subgroup) {
      std::vector<double> mine(some, rank.rank);
      subgroup.all_reduce(buffer_of(mine));
      EXPECT_EQ(mine, std::vector<double>(some, 0 + 1 + 2 + 3));
    };
    std::thread beside([&] { rank.rank % 2 == 0 ? sum(one) : sum(other); });
    rank.rank % 2 == 0 ? sum(other) : sum(one);
    beside.join();
    destroy_process_group(group);
  }
});

TEST_P(AcrossHosts, GroupsDoNotWaitForEachOtherAndMayBeCreatedAgain) {
  LOCKSTEP_NEEDS_ENGINE(engine());
  EXPECT_TRUE(all_succeeded(two_groups.run(4, 60s)));
}

INSTANTIATE_TEST_SUITE_P(Engines, AcrossHosts, testing::Values("shm+gloo", "shm+oneccl", "gloo"),
                         [](const auto& test) {
                           std::string name = test.param;
                           for (char& c : name)
                             if (c == '+') c = '_';
                           return name;
                         });

const Ranks disagrees("asks for another backend", [](const Rank& rank) {
  if (rank.rank == 1) ::setenv("LOCKSTEP_BACKEND", "shm+oneccl", 1);
  std::string text;
  EXPECT_EQ(fault_of([&] { test::join_across_hosts(rank); }, &text), Fault::mismatch);
  EXPECT_NE(text.find("rank 0 asks for backend 'shm+gloo', rank 1 for 'shm+oneccl'"),
            std::string::npos)
      << text;
});

TEST(JoinHosts, ABackendMismatchIsReportedToAllRanks) {
  HostLayout{"ab", "shm+gloo"}.set();
  EXPECT_TRUE(all_succeeded(disagrees.run(2, 30s)));
  HostLayout::unset();
}

// Far less than a rank's wait for ranks that never come.
constexpr auto at_once = 20.0;

// On one host, where some ranks use only shared memory.
void expect_disagreement(const InitOptions& options, const char* what) {
  const auto begin = Clock::now();
  std::string text;
  EXPECT_EQ(fault_of([&] { init_process_group(options); }, &text), Fault::mismatch);
  EXPECT_NE(text.find(what), std::string::npos) << text;
  EXPECT_LT(seconds_since(begin), at_once);
}

const Ranks disagrees_here("asks for another backend on one host", [](const Rank& rank) {
  if (rank.rank == 1) ::setenv("LOCKSTEP_BACKEND", "gloo", 1);
  expect_disagreement({}, "rank 0 asks for backend 'auto', rank 1 for 'gloo'");
});

const Ranks rank_zero_disagrees("rank 0 asks for another backend", [](const Rank& rank) {
  test::wait_until_done(rank, {0, 1, 2});  // A rank that starts 2 s later is not named.
  expect_disagreement({.backend = rank.rank == 0 ? "gloo" : "shm"},
                      "rank 0 asks for backend 'gloo', rank 1 for 'shm', rank 2 for 'shm'");
});

TEST(JoinHosts, ABackendMismatchOnOneHostIsReportedToAllRanksImmediately) {
  EXPECT_TRUE(all_succeeded(disagrees_here.run(2, 60s)));
  EXPECT_TRUE(all_succeeded(rank_zero_disagrees.run(3, 60s)));
}

const Ranks differ_in_name_only("ask for one backend by two names", [](const Rank& rank) {
  ProcessGroup group = init_process_group({.backend = rank.rank == 0 ? "auto" : "shm"});
  group.barrier();
  destroy_process_group(group);
});

TEST(JoinHosts, RanksOfOneHostMayNameItsSharedMemoryDifferently) {
  EXPECT_TRUE(all_succeeded(differ_in_name_only.run(2, 30s)));
}

// Returns one port for all ranks of a run, which no other run has.
int port_for(const Rank& rank) {
  const auto file = rank.scratch / "port";
  if (rank.rank == 0) {
    // Kept, so that no other process gets the port. It never listens, so this rank may.
    static const FileDescriptor free(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int yes = 1;
    EXPECT_EQ(::setsockopt(free.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes), 0);
    sockaddr_in any{};
    any.sin_family = AF_INET;
    socklen_t size = sizeof any;
    EXPECT_EQ(::bind(free.get(), reinterpret_cast<const sockaddr*>(&any), size), 0);
    EXPECT_EQ(::getsockname(free.get(), reinterpret_cast<sockaddr*>(&any), &size), 0);
    std::ofstream(file.string() + ".new") << ntohs(any.sin_port);
    std::filesystem::rename(file.string() + ".new", file);
  }
  await_file(file);
  int port = 0;
  std::ifstream(file) >> port;
  return port;
}

const Ranks meets_by_engine("meets by an engine on one host", [](const Rank& rank) {
  ::setenv("MASTER_PORT", std::to_string(port_for(rank)).c_str(), 1);
  for (int round = 0; round < 2; ++round) {
    ProcessGroup group = init_process_group({.backend = "gloo"});
    EXPECT_EQ(group.backend(), "gloo");
    group.barrier();
    destroy_process_group(group);
  }
});

TEST(JoinHosts, RanksOfOneHostMayJoinThroughAnEngine) {
  LOCKSTEP_NEEDS_ENGINE("gloo");
  EXPECT_TRUE(all_succeeded(meets_by_engine.run(2, 60s)));
}

const Ranks chooses("chooses by itself", [](const Rank& rank) {
  ProcessGroup group = test::join_across_hosts(rank);
  EXPECT_EQ(group.backend(), rank.world_size == 3 ? "shm+gloo" : "gloo");
  destroy_process_group(group);
});

TEST(JoinHosts, ChooseAnEngineByThemselves) {
  LOCKSTEP_NEEDS_ENGINE("gloo");
  HostLayout{"aab", "auto"}.set();
  EXPECT_TRUE(all_succeeded(chooses.run(3, 30s)));
  HostLayout{"ab", ""}.set();
  EXPECT_TRUE(all_succeeded(chooses.run(2, 30s)));
  HostLayout::unset();
}

const Ranks absent("does not come", [](const Rank& rank) {
  if (rank.rank == 2) return;
  test::wait_until_done(rank, {0, 1});  // One may start more than a second later.
  std::string text;
  EXPECT_EQ(fault_of([&] { test::join_across_hosts(rank, 2s); }, &text), Fault::timeout);
  EXPECT_NE(text.find("of 3 ranks, these did not come: 2"), std::string::npos) << text;
});

TEST(JoinHosts, NameWhoDoesNotCome) {
  HostLayout{"abc", "auto"}.set();
  EXPECT_TRUE(all_succeeded(absent.run(3, 30s)));
  HostLayout::unset();
}

}  // namespace
}  // namespace lockstep::comm::hosts_failure_test
