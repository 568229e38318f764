// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/host_session.h"

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/log.h"
#include "lockstep/base/memory.h"
#include "lockstep/job/step_times.h"
#include "tests/fault_of.h"

namespace lockstep::job::host_session_test {
namespace {

template <class Holds>
bool soon(Holds holds) {
  const Deadline deadline = in(std::chrono::seconds(10));
  while (!holds() && Clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return holds();
}

TEST(HostSession, TheHeartGoesOnWhileALogSinkTakesItsTime) {
  std::promise<void> release;
  std::atomic<bool> is_logging{false};
  set_log_sink([&, released = release.get_future().share()](LogLevel, std::string_view) {
    is_logging = true;
    released.wait();
  });
  {
    HostSession session({.job_id = "job", .opens = true, .is_alone = true},
                        in(std::chrono::seconds(10)));
    session.page().report({.rank = 1, .what = "std::bad_alloc", .fault = Fault::timeout});
    EXPECT_TRUE(soon([&] { return is_logging.load(); }));
    const auto& heartbeat = session.page().activity(0).heartbeat;
    const std::uint64_t before = heartbeat;
    EXPECT_TRUE(soon([&] { return heartbeat >= before + 3; }));
    release.set_value();
  }
  set_log_sink({});
}

// Returns what a session logs when its other rank is lost.
std::vector<std::string> logged_of_a_loss(bool is_told_to_end) {
  std::vector<std::string> logged;
  set_log_sink([&](LogLevel, std::string_view text) { logged.emplace_back(text); });
  {
    HostSession session({.size = 2, .job_id = "job", .identity = "a loss", .opens = true},
                        in(std::chrono::seconds(10)));
    if (is_told_to_end) session.page().tell_to_end(1);
    std::thread([&] { session.page().enter(1); }).join();  // Its thread ends, so it is lost.
    EXPECT_TRUE(soon([&] { return session.page().failure().has_value(); }));
  }
  set_log_sink({});
  return logged;
}

TEST(HostSession, LogsTheLossOfARankUnlessThatWasToldToEnd) {
  const auto logged = logged_of_a_loss(false);
  ASSERT_EQ(logged.size(), 1U);
  EXPECT_NE(logged[0].find("lockstep-fail job=job rank=1 "), std::string::npos) << logged[0];
  EXPECT_EQ(logged_of_a_loss(true), std::vector<std::string>());
}

TEST(HostSession, WhatARankHasWithdrawnIsOfferedNoMore) {
  HostSession session({.job_id = "job", .opens = true, .is_alone = true},
                      in(std::chrono::seconds(10)));
  const auto memory = SharedMapping::create("memory", 1);
  const auto obtain = [&](std::chrono::milliseconds time) {
    session.link().obtain("memory", in(time));
  };
  session.link().offer("memory", 2, memory.descriptor());
  obtain(std::chrono::seconds(10));
  session.link().withdraw("memory");
  EXPECT_EQ(test::fault_of([&] { obtain(std::chrono::milliseconds(100)); }), Fault::timeout);
}

TEST(HostSession, ShowsWhereTheTimeOfTheTrainingLoopGoes) {
  HostSession session({.job_id = "job", .opens = true, .is_alone = true},
                      in(std::chrono::seconds(10)));
  std::thread([&] {
    const InPhase data(StepPhase::data);
    const auto shown = [&] {
      return session.page().step_report(0).recent.shown()[StepPhase::data];
    };
    EXPECT_TRUE(soon([&] { return shown() > std::chrono::milliseconds(500); }));
  }).join();
}

// Rank 0 connects the ranks here. A wait that looks for lost ranks names it; any other one ends,
// too.
TEST(HostSession, AWaitForMemoryNamesALostRankZero) {
  const auto meeting = [](int rank) {
    return HostMeeting{.rank = rank,
                       .size = 2,
                       .job_id = "job",
                       .identity = "a lost rank zero",
                       .opens = rank == 0};
  };
  auto zero = std::make_unique<HostSession>(meeting(0), in(std::chrono::seconds(10)));
  HostSession one(meeting(1), in(std::chrono::seconds(10)));
  zero.reset();
  const auto obtain = [&](const std::function<void()>& look) {
    std::string text;
    const auto act = [&] { one.link().obtain("memory", in(std::chrono::minutes(1)), look); };
    EXPECT_EQ(test::fault_of(act, &text), Fault::peer_lost);
    return text;
  };
  const std::string named = obtain([&] { one.throw_if_peer_lost("making a group"); });
  EXPECT_NE(named.find("making a group: rank 0 "), named.npos) << named;
  const std::string unnamed = obtain([] {});
  EXPECT_NE(unnamed.find("is gone"), unnamed.npos) << unnamed;
}

// Both jobs are named alike. The slot is not the second one's to announce anything in.
TEST(HostSession, ARankOfAnotherJobThatFindsItsSlotTakenAnnouncesNothing) {
  LaunchEnvironment who;
  who.job_id = "host session test";
  HostMeeting meeting = HostMeeting::on_socket(who, "world");
  meeting.is_alone = false;
  meeting.told = {.meeting = 1, .world_size = 1};
  HostSession session(meeting, in(std::chrono::seconds(10)));
  HostMeeting other = HostMeeting::on_socket(who, "world");
  other.opens = false;
  other.told = {.meeting = 1, .world_size = 3};
  EXPECT_EQ(test::fault_of([&] { HostSession(other, in(std::chrono::seconds(10))); }),
            Fault::misuse);
  EXPECT_EQ(session.page().told(0, 1)->world_size, 1);
}

TEST(HostMeeting, IsNamedAfterASecretWithoutShowingIt) {
  const LaunchEnvironment who;
  const std::string identity = HostMeeting::on_socket(who, "world", "s3cret").identity;
  EXPECT_EQ(identity.find("s3cret"), identity.npos) << identity;
  EXPECT_EQ(HostMeeting::on_socket(who, "world", "s3cret").identity, identity);
  EXPECT_NE(HostMeeting::on_socket(who, "world", "another").identity, identity);
  EXPECT_NE(HostMeeting::on_socket(who, "world#2", "s3cret").identity, identity);
}

}  // namespace
}  // namespace lockstep::job::host_session_test
