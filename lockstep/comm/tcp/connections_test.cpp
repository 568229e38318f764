// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/tcp/connections.h"

#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <future>
#include <mutex>
#include <thread>

#include "tests/fault_of.h"
#include "tests/rigs/connections_rig.h"
#include "tests/rigs/store_rig.h"
#include "tests/small_stacks.h"

namespace lockstep::comm::connections_test {
namespace {

using namespace std::chrono_literals;
using test::ConnectionTeam;
using test::fault_of;
using test::nothing;

class Heard {
 public:
  explicit Heard(Channels& group) {
    group.on_abort([this](const AbortReason& why) {
      const std::lock_guard lock(mutex_);
      ++calls_;
      why_ = why;
      called_.notify_all();
    });
  }
  bool await() {
    std::unique_lock lock(mutex_);
    return called_.wait_until(lock, in(20s), [&] { return calls_ > 0; });
  }
  int calls() {
    const std::lock_guard lock(mutex_);
    return calls_;
  }
  AbortReason why() {
    const std::lock_guard lock(mutex_);
    return why_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable called_;
  int calls_ = 0;
  AbortReason why_ = {.fault = Fault::bug};
};

void expect_connections(ConnectionTeam& team) {
  const auto groups = team.open("world");
  for (int from = 0; from < team.size(); ++from)
    for (int to = 0; to < team.size(); ++to)
      if (from != to)
        groups[static_cast<std::size_t>(from)]->say(
            to, std::to_string(from) + "-" + std::to_string(to));
  for (int to = 0; to < team.size(); ++to) {
    for (int from = 0; from < team.size(); ++from) {
      if (from == to) continue;
      EXPECT_EQ(groups[static_cast<std::size_t>(to)]->hear(from, in(20s), nothing),
                std::to_string(from) + "-" + std::to_string(to));
    }
  }
}

class ConnectionsOf : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ConnectionsOf, testing::Values(2, 3, 5));

TEST_P(ConnectionsOf, ThatManyRanksReachAllOthers) {
  ConnectionTeam team(GetParam());
  team.connect();
  expect_connections(team);
}

TEST(Connections, WorkWhereOtherThreadsHaveSmallStacks) {
  const test::SmallStacks others;
  ConnectionTeam team(2);
  team.connect();
  expect_connections(team);
}

TEST(Connections, GoOverIPv6) {
  ConnectionTeam team(2, "::1");
  EXPECT_EQ(team[0].address().substr(0, 6), "[::1]:");
  team.connect();
  expect_connections(team);
}

TEST(Connections, AreNotMadeForAnAddressOfAnotherHost) {
  const auto listen = [](const std::string& address) {
    Connections({.member = test::member_of(0, 2), .token = make_job_token(), .listen_on = address});
  };
  EXPECT_EQ(fault_of([&] { listen("192.0.2.1"); }), Fault::misuse);
  EXPECT_EQ(fault_of([&] { listen("eth0"); }), Fault::misuse);
}

TEST(Connections, NameWhoDidNotComeInTime) {
  ConnectionTeam team(3);
  team.end(1);  // Its port is closed, and rank 2 does not call connect().
  std::string text;
  EXPECT_EQ(fault_of([&] { team[2].connect(team.remote(2), in(300ms), nothing); }, &text),
            Fault::timeout);
  EXPECT_NE(text.find("2 of 2 ranks"), text.npos) << text;
  EXPECT_NE(text.find("rank 0 (pid 100 on host0"), text.npos) << text;
  EXPECT_NE(text.find("it did not connect to"), text.npos) << text;
  EXPECT_EQ(fault_of([&] { team[0].connect(team.remote(0), in(300ms), nothing); }, &text),
            Fault::timeout);
  EXPECT_NE(text.find("rank 1 (pid 101 on host1"), text.npos) << text;
  EXPECT_NE(text.find("refused"), text.npos) << text;
}

TEST(Connections, EndTheWaitForOthersWhenWhoWatchesThrows) {
  ConnectionTeam team(2);
  int calls = 0;
  const auto begin = Clock::now();
  EXPECT_EQ(fault_of([&] {
              team[1].connect(team.remote(1), in(60s), [&] {
                if (++calls == 10) throw Error(Fault::aborted, "watched");
              });
            }),
            Fault::aborted);
  EXPECT_LT(Clock::now() - begin, 5s);
}

TEST(Connections, CarryEntriesInOrder) {
  ConnectionTeam team(2);
  team.connect();
  const auto groups = team.open("world");
  constexpr int count = 20'000;
  std::thread speaker([&] {
    for (int i = 0; i < count; ++i) groups[0]->say(1, std::to_string(i));
  });
  for (int i = 0; i < count; ++i)
    ASSERT_EQ(groups[1]->hear(0, in(20s), nothing), std::to_string(i));
  speaker.join();
}

TEST(Connections, CarryEntriesOfAnyLength) {
  ConnectionTeam team(2);
  team.connect();
  const auto groups = team.open("world");
  for (const std::size_t size : {0, 1, 65535, 65536, 65537, 131072, 3'000'000}) {
    std::string entry(size, 'a');
    if (size > 0) entry.back() = 'z';
    groups[1]->say(0, entry);
    EXPECT_EQ(groups[0]->hear(1, in(20s), nothing), entry) << size;
  }
}

TEST(Connections, ReceiveNothingAtTheDeadline) {
  ConnectionTeam team(2);
  team.connect();
  const auto groups = team.open("world");
  int watched = 0;
  EXPECT_EQ(groups[0]->hear(1, in(200ms), [&] { ++watched; }), std::nullopt);
  EXPECT_GT(watched, 1);
  EXPECT_EQ(groups[0]->hear(1, Clock::now(), nothing), std::nullopt);
  EXPECT_EQ(fault_of([&] {
              groups[0]->hear(1, no_deadline, [] { throw Error(Fault::aborted, "watched"); });
            }),
            Fault::aborted);
}

TEST(Connections, KeepWhatComesBeforeItsGroupIsOpened) {
  ConnectionTeam team(2);
  team.connect();
  const auto first = team[0].open("late", {0, 1});
  first->say(1, "early");
  const std::byte byte{42};
  first->to(1).count_sent();
  EXPECT_EQ(first->to(1).write(&byte, 1), 1U);
  const auto other = team.open("other");
  other[0]->say(1, "after it");
  ASSERT_EQ(other[1]->hear(0, in(20s), nothing), "after it");

  const auto second = team[1].open("late", {0, 1});
  EXPECT_EQ(second->hear(0, Clock::now(), nothing), "early");
  ASSERT_NE(second->from(0), nullptr);
  std::byte got{};
  EXPECT_EQ(second->from(0)->read(&got, 1), 1U);
  EXPECT_EQ(got, byte);
}

TEST(Connections, KeepGroupsApart) {
  ConnectionTeam team(3);
  team.connect();
  const auto all = team.open("world");
  const auto first = team[2].open("some", {2, 0});  // Its rank 0 is rank 2 of the job.
  const auto second = team[0].open("some", {2, 0});
  first->say(1, "to some");
  all[2]->say(0, "to all");
  EXPECT_EQ(all[0]->hear(2, in(20s), nothing), "to all");
  EXPECT_EQ(second->hear(0, in(20s), nothing), "to some");
}

TEST(Connections, OpenAGroupOnce) {
  ConnectionTeam team(2);
  team.connect();
  team[0].open("world", {0, 1});
  EXPECT_EQ(fault_of([&] { team[0].open("world", {0, 1}); }), Fault::misuse);
}

TEST(Connections, DropWhatComesForAGroupThatIsClosed) {
  ConnectionTeam team(2);
  team.connect();
  // More groups than a rank may use that are not open here.
  for (int i = 0; i < 1500; ++i) {
    const std::string name = "step " + std::to_string(i);
    team[1].open(name, {0, 1}).reset();
    team[0].open(name, {0, 1})->say(1, "late");
  }
  const auto groups = team.open("world");
  groups[0]->say(1, "still here");
  EXPECT_EQ(groups[1]->hear(0, in(20s), nothing), "still here");
  EXPECT_EQ(fault_of([&] { team[1].open("step 7", {0, 1}); }), Fault::misuse);
}

TEST(Connections, KeepNextToNothingOfGroupsThatAreClosed) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers keep freed memory";
#endif
  ConnectionTeam team(2);
  team.connect();
  const std::size_t before = test::resident_bytes();
  for (int i = 0; i < 20'000; ++i) team[0].open("step " + std::to_string(i), {0, 1}).reset();
  EXPECT_LT(test::resident_bytes(), before + (std::size_t{4} << 20));
}

TEST(Connections, ReportWhyAGroupWasAbortedOnce) {
  ConnectionTeam team(3);
  team.connect();
  const auto groups = team.open("world");
  Heard first(*groups[0]);
  Heard third(*groups[2]);
  groups[1]->abort({.fault = Fault::mismatch, .rank = 1, .ranks = {0, 2}, .reason = "the reason"});
  groups[1]->abort({.fault = Fault::timeout, .reason = "another one"});
  ASSERT_TRUE(first.await());
  ASSERT_TRUE(third.await());
  EXPECT_EQ(first.why().fault, Fault::mismatch);
  EXPECT_EQ(first.why().rank, 1);
  EXPECT_EQ(first.why().ranks, (std::vector<int>{0, 2}));
  EXPECT_EQ(third.why().reason, "the reason");
  groups[1]->say(0, "nothing is said after it");
  EXPECT_EQ(groups[0]->hear(1, in(100ms), nothing), std::nullopt);
  EXPECT_EQ(first.calls(), 1);
}

TEST(Connections, ReportAReasonWithoutTerminalControlCharacters) {
  ConnectionTeam team(2);
  team.connect();
  const auto groups = team.open("world");
  Heard other(*groups[0]);
  groups[1]->abort({.fault = Fault::mismatch, .reason = "the\n\x1b[2J reason"});
  ASSERT_TRUE(other.await());
  EXPECT_EQ(other.why().reason, "the  [2J reason");
}

TEST(Connections, ReportRanksOfTheGroupOnly) {
  ConnectionTeam team(2);
  team.connect();
  const auto groups = team.open("world");
  Heard other(*groups[0]);
  groups[1]->abort({.fault = Fault::timeout, .rank = 1, .ranks = {0, 1, 2, 1'000'000}});
  ASSERT_TRUE(other.await());
  EXPECT_EQ(other.why().ranks, (std::vector<int>{0, 1}));
}

TEST(Connections, AskARankThatIsNamedAndNoOtherAlsoBeforeItListens) {
  ConnectionTeam team(3);
  team.connect();
  const auto groups = team.open("world");
  std::atomic<int> questions = 0;
  groups[2]->on_question([&] { ADD_FAILURE() << "rank 2 was not asked"; });
  groups[0]->ask_who_is_absent({1});
  for (const int peer : {1, 2}) {
    groups[0]->say(peer, "after it");
    ASSERT_EQ(groups[static_cast<std::size_t>(peer)]->hear(0, in(20s), nothing), "after it");
  }
  groups[1]->on_question([&] { ++questions; });
  const Deadline deadline = in(20s);
  while (questions == 0 && Clock::now() < deadline) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(questions, 1);
}

TEST(Connections, ReportWhyAGroupWasAbortedBeforeItWasOpened) {
  ConnectionTeam team(2);
  team.connect();
  team[0].open("late", {0, 1})->abort({.fault = Fault::timeout, .reason = "the reason"});
  const auto other = team.open("other");
  other[0]->say(1, "after it");
  ASSERT_EQ(other[1]->hear(0, in(20s), nothing), "after it");
  const auto late = team[1].open("late", {0, 1});
  Heard abort_reason(*late);
  ASSERT_TRUE(abort_reason.await());
  EXPECT_EQ(abort_reason.why().fault, Fault::timeout);
  EXPECT_EQ(abort_reason.why().reason, "the reason");
}

TEST(Connections, GroupsMayOutliveThem) {
  ConnectionTeam team(2);
  team.connect();
  const auto groups = team.open("world");
  team.end(0);
  team.end(1);
  groups[0]->say(1, "to nobody");
  EXPECT_EQ(groups[1]->hear(0, in(50ms), nothing), std::nullopt);
}

}  // namespace
}  // namespace lockstep::comm::connections_test
