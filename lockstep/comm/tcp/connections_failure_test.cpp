// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "lockstep/comm/tcp/stream.h"
#include "lockstep/job/store/store.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"
#include "tests/rigs/connections_rig.h"

namespace lockstep::comm::connections_failure_test {
namespace {

using namespace std::chrono_literals;
using test::ConnectionTeam;
using test::fault_of;
using test::HeardFailures;
using test::member_of;
using test::nothing;
using test::Rank;
using test::Ranks;

TEST(ConnectionsFailure, ReportALostConnectionOnceAfterDeliveringItsData) {
  ConnectionTeam team(3);
  team.connect();
  const auto groups = team.open("world");
  groups[2]->say(0, "a report");
  const auto begin = Clock::now();
  team.end(2);
  const auto failure = team.failures(0).await_first(in(20s));
  ASSERT_TRUE(failure);
  EXPECT_LT(Clock::now() - begin, 3500ms);  // Less than a silence that ends a connection.
  EXPECT_EQ(failure->rank, 2);
  EXPECT_EQ(failure->host, "host2");
  EXPECT_EQ(failure->pid, 102);
  EXPECT_EQ(failure->detected_by, 0);
  EXPECT_EQ(describe(*failure), "rank 2 (pid 102 on host2) was lost: its connection ended");
  EXPECT_EQ(groups[0]->hear(2, in(1s), nothing), "a report");
  ASSERT_TRUE(team.failures(1).await_first(in(20s)));
  std::this_thread::sleep_for(500ms);
  EXPECT_EQ(team.failures(0).all().size(), 1U);
}

TEST(ConnectionsFailure, IncludesAReportFromTheSameHostWithinTheGracePeriod) {
  ConnectionTeam team(3);
  team.connect();
  team.end(2);
  team[1].tell_failure({.rank = 2, .host = "host2", .pid = 102, .signal = SIGKILL, .oom = true});
  const auto failure = team.failures(0).await_first(in(20s));
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->signal, SIGKILL);
  EXPECT_EQ(failure->oom, true);
  std::this_thread::sleep_for(500ms);
  EXPECT_EQ(team.failures(0).all().size(), 1U);
}

TEST(ConnectionsFailure, ReportTheDeathOfARankWithAnOpenConnectionAtOnce) {
  ConnectionTeam team(3);
  team.connect();
  team[1].tell_failure({.rank = 2, .what = "an exception", .left = true});
  const auto failure = team.failures(0).await_first(in(20s));
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->what, "an exception");
  EXPECT_TRUE(failure->left);
  EXPECT_TRUE(team.failures(1).all().empty());
}

TEST(ConnectionsFailure, IsNotReportedForARankOutsideTheJob) {
  ConnectionTeam team(3);
  team.connect();
  for (const int rank : {-1, 3}) team[1].tell_failure({.rank = rank});
  // Over the same connection.
  team[1].tell_failure({.rank = 2, .what = "an exception", .left = true});
  const auto failure = team.failures(0).await_first(in(20s));
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->rank, 2);
}

TEST(ConnectionsFailure, IsNoneOfARankThatHasFinished) {
  ConnectionTeam team(3);
  team.connect();
  const auto groups = team.open("world");
  groups[2]->say(0, std::string(1'000'000, 'x'));  // All of it is sent before the end.
  team[2].finish();
  team.end(2);
  EXPECT_EQ(groups[0]->hear(2, in(20s), nothing)->size(), 1'000'000U);
  EXPECT_EQ(team.failures(0).await_first(in(500ms)), std::nullopt);
  EXPECT_EQ(team.failures(1).all().size(), 0U);
}

TEST(ConnectionsFailure, IsNoneForARankThatHasFinishedItself) {
  ConnectionTeam team(2);
  team.connect();
  team[0].finish();
  team.end(1);
  EXPECT_EQ(team.failures(0).await_first(in(500ms)), std::nullopt);
}

TEST(ConnectionsFailure, EndsTheWaitOfConnectingRanksWhenARankIsLost) {
  ConnectionTeam team(3);
  const auto pick = [&](int rank, std::vector<int> wanted) {
    std::vector<RemoteRank> some;
    for (const RemoteRank& remote : team.remote(rank))
      if (std::find(wanted.begin(), wanted.end(), remote.rank) != wanted.end())
        some.push_back(remote);
    return some;
  };
  std::thread second([&] { team[1].connect(pick(1, {0}), in(20s), nothing); });
  std::string text;
  std::thread ends([&] {
    second.join();
    team.end(1);
  });
  // Rank 2 never sends its rank, and rank 1 dies meanwhile.
  team.end(2);
  EXPECT_EQ(fault_of([&] { team[0].connect(team.remote(0), in(20s), nothing); }, &text),
            Fault::peer_lost);
  EXPECT_NE(text.find("rank 1"), text.npos) << text;
  ends.join();
}

// Connections of real processes, which find each other through a file.
struct Process {
  explicit Process(const Rank& rank)
      : connections(
            {.member = member_of(rank.rank, rank.world_size), .on_failure = heard.listener()}) {
    FileStore store({.path = rank.scratch / "store"});
    const auto key = [](int of) { return "connection " + std::to_string(of); };
    store.set(key(rank.rank), std::to_string(::getpid()) + " " + connections.address());
    std::vector<RemoteRank> ranks;
    for (int other = 0; other < rank.world_size; ++other) {
      if (other == rank.rank) continue;
      const std::string said = store.wait(key(other), in(20s));
      const auto space = said.find(' ');
      ranks.push_back({.rank = other,
                       .host = "this host",
                       .pid = std::stoi(said),
                       .address = said.substr(space + 1)});
    }
    connections.connect(ranks, in(20s), nothing);
    pids.resize(static_cast<std::size_t>(rank.world_size));
    for (const RemoteRank& remote : ranks) pids[static_cast<std::size_t>(remote.rank)] = remote.pid;
    std::vector<int> all;
    for (int r = 0; r < rank.world_size; ++r) all.push_back(r);
    group = connections.open("world", all);
  }

  HeardFailures heard;
  Connections connections;
  std::shared_ptr<Channels> group;
  std::vector<int> pids;
};

const Ranks killed("killed on its connection", [](const Rank& rank) {
  Process process(rank);
  if (rank.rank == 1) {
    for (const int other : {0, 2}) {
      ASSERT_EQ(process.group->hear(other, in(20s), nothing), "connected");
      process.group->say(other, "going");
    }
    ::raise(SIGKILL);
  }
  process.group->say(1, "connected");
  ASSERT_EQ(process.group->hear(1, in(20s), nothing), "going");
  const auto begin = Clock::now();
  const auto failure = process.heard.await_first(in(20s));
  EXPECT_LT(Clock::now() - begin, 3500ms);  // Less than a silence that ends a connection.
  ASSERT_TRUE(failure);
  EXPECT_EQ(failure->rank, 1);
  EXPECT_EQ(failure->pid, process.pids[1]);
  process.connections.finish();
});

TEST(ConnectionsFailure, IsDetectedSoonAfterAProcessIsKilled) {
  const auto exits = killed.run(3);
  EXPECT_EQ(exits[0].code, 0) << exits[0].output;
  EXPECT_EQ(exits[1].signal, SIGKILL);
  EXPECT_EQ(exits[2].code, 0) << exits[2].output;
}

// The stopped process's socket is full, so its host only reports a zero window.
const Ranks stopped("stopped on its connection", [](const Rank& rank) {
  Process process(rank);
  if (rank.rank == 1) {
    ASSERT_EQ(process.group->hear(0, in(30s), nothing), "go on");
    process.connections.finish();
    return;
  }
  ::kill(process.pids[1], SIGSTOP);
  const std::vector<std::byte> data(stream_credit, std::byte{1});
  std::vector<std::shared_ptr<Channels>> more;
  for (int i = 0; i < 16; ++i) {
    more.push_back(process.connections.open("more " + std::to_string(i), {0, 1}));
    more.back()->to(1).count_sent();
    more.back()->to(1).write(data.data(), data.size());
  }
  EXPECT_EQ(process.heard.await_first(in(7s)), std::nullopt);  // Longer than any allowed silence.
  ::kill(process.pids[1], SIGCONT);
  process.group->say(1, "go on");
  EXPECT_EQ(process.heard.await_first(in(1s)), std::nullopt);
  process.connections.finish();
});

// Rank 1 is stopped for longer than it would wait. Rank 0 may stand still for 2 s.
const Ranks overslept("overslept on its connection", [](const Rank& rank) {
  Process process(rank);
  if (rank.rank == 1) {
    process.group->say(0, "waiting");
    EXPECT_EQ(process.group->hear(0, in(2400ms), nothing), "in time");
    process.connections.finish();
    return;
  }
  ASSERT_EQ(process.group->hear(1, in(20s), nothing), "waiting");
  std::this_thread::sleep_for(100ms);
  ::kill(process.pids[1], SIGSTOP);
  std::this_thread::sleep_for(2700ms);
  ::kill(process.pids[1], SIGCONT);
  std::this_thread::sleep_for(300ms);
  process.group->say(1, "in time");
  process.connections.finish();
});

TEST(ConnectionsFailure, IsNoneForAProcessThatWasStoppedBeyondItsOwnDeadline) {
  EXPECT_TRUE(all_succeeded(overslept.run(2)));
}

TEST(ConnectionsFailure, IsNoneOfAProcessThatIsStopped) {
  EXPECT_TRUE(all_succeeded(stopped.run(2)));
}

}  // namespace
}  // namespace lockstep::comm::connections_failure_test
