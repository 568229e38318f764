// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/host_session.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/base/log.h"
#include "lockstep/base/memory.h"
#include "lockstep/job/step_times.h"
#include "tests/fault_of.h"
#include "tests/soon.h"

namespace lockstep::job::host_session_test {
namespace {

using test::soon;

[[maybe_unused]] const int logs_records = ::setenv("LOCKSTEP_LOG", "info", 1);

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

std::vector<std::string> logged_of_a_loss(bool is_told_to_end) {
  std::vector<std::string> logged;
  set_log_sink([&](LogLevel, std::string_view text) { logged.emplace_back(text); });
  {
    HostSession session({.size = 2, .job_id = "job", .identity = "a loss", .opens = true},
                        in(std::chrono::seconds(10)));
    if (is_told_to_end) session.page().tell_to_end(1);
    std::thread([&] { session.page().enter(1); }).join();  // Lost when its thread ends.
    EXPECT_TRUE(soon([&] { return session.page().failure().has_value(); }));
  }
  set_log_sink({});
  return logged;
}

TEST(HostSession, LogsTheLossOfARankUnlessItsEndWasRequested) {
  const auto logged = logged_of_a_loss(false);
  ASSERT_EQ(logged.size(), 1U);
  EXPECT_NE(logged[0].find("lockstep-fail job=job rank=1 "), std::string::npos) << logged[0];
  EXPECT_EQ(logged_of_a_loss(true), std::vector<std::string>());
}

class Pair {
 public:
  explicit Pair(const std::string& name) : name_(name), zero_(join(0)), one_(join(1)) {}

  HostSession& zero() { return *zero_; }
  HostSession& one() { return *one_; }
  void end_zero() { zero_.reset(); }

 private:
  std::unique_ptr<HostSession> join(int rank) {
    const HostMeeting meeting{
        .rank = rank, .size = 2, .job_id = "job", .identity = name_, .opens = rank == 0};
    return std::make_unique<HostSession>(meeting, in(std::chrono::seconds(10)));
  }

  const std::string name_;
  std::unique_ptr<HostSession> zero_;
  std::unique_ptr<HostSession> one_;
};

SharedMapping memory_with(char mark) {
  auto memory = SharedMapping::create("memory", 1);
  *memory.data() = static_cast<std::byte>(mark);
  return memory;
}

char mark_in(FileDescriptor memory) {
  return static_cast<char>(*SharedMapping::attach(std::move(memory)).data());
}

TEST(HostSession, DoesNotReturnMemoryAfterItIsWithdrawn) {
  Pair pair("withdrawn");
  const auto memory = memory_with('a');
  const auto fetch = [&](std::chrono::milliseconds time) {
    return pair.one().fetch(0, "memory", in(time), [] {});
  };
  pair.zero().offer("memory", memory.descriptor());
  EXPECT_EQ(mark_in(fetch(std::chrono::seconds(10))), 'a');
  EXPECT_EQ(mark_in(fetch(std::chrono::seconds(10))), 'a') << "any number of times";
  pair.zero().withdraw("memory");
  EXPECT_FALSE(fetch(std::chrono::milliseconds(100)));
}

TEST(HostSession, ARefusalReachesTheRankThatFetches) {
  Pair pair("refused");
  pair.one().refuse("memory", "no memory is left");
  std::string text;
  const auto fetch = [&] { pair.zero().fetch(1, "memory", in(std::chrono::seconds(10)), [] {}); };
  EXPECT_EQ(test::fault_of(fetch, &text), Fault::system);
  EXPECT_NE(text.find("memory: no memory is left"), text.npos) << text;
}

TEST(HostSession, DeliveredMemoryOutlivesItsSender) {
  Pair pair("delivered");
  EXPECT_FALSE(pair.one().take("memory"));
  pair.zero().deliver(1, "memory", memory_with('b').descriptor());
  pair.zero().leave();
  pair.end_zero();
  FileDescriptor memory;
  EXPECT_TRUE(soon([&] {
    if (!memory) memory = pair.one().take("memory");
    return bool(memory);
  }));
  ASSERT_TRUE(memory);
  EXPECT_EQ(mark_in(std::move(memory)), 'b');
  EXPECT_FALSE(pair.one().take("memory")) << "it was taken";
}

TEST(HostSession, DroppedMemoryIsReleasedWhetherOrNotItHasCome) {
  Pair pair("dropped");
  const auto deliver = [&](const char* key) {
    pair.zero().deliver(1, key, memory_with('c').descriptor());
  };
  const auto await = [&](const char* key) {
    FileDescriptor memory;
    EXPECT_TRUE(soon([&] {
      if (!memory) memory = pair.one().take(key);
      return bool(memory);
    }));
  };
  pair.one().drop("still to come");
  deliver("still to come");
  deliver("has come");
  deliver("last");
  await("last");
  pair.one().drop("has come");
  EXPECT_FALSE(pair.one().take("still to come"));
  EXPECT_FALSE(pair.one().take("has come"));
  deliver("still to come");  // Only one was dropped.
  await("still to come");
}

TEST(HostSession, DeliveryToARankThatHasLeftDoesNothing) {
  Pair pair("delivered too late");
  pair.zero().leave();
  pair.one().deliver(0, "memory", memory_with('c').descriptor());
  pair.end_zero();
  pair.one().deliver(0, "memory", memory_with('c').descriptor());
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

TEST(HostSession, AWaitForMemoryNamesALostRank) {
  Pair pair("a lost rank zero");
  pair.end_zero();
  const auto look = [&] { pair.one().throw_if_peer_lost("making a group"); };
  std::string text;
  const auto fetch = [&] { pair.one().fetch(0, "memory", in(std::chrono::minutes(1)), look); };
  EXPECT_EQ(test::fault_of(fetch, &text), Fault::peer_lost);
  EXPECT_NE(text.find("making a group: rank 0 "), text.npos) << text;
}

// Both jobs have the same name. The second one does not own the slot.
TEST(HostSession, ARankOfAnotherJobThatFindsItsSlotTakenAnnouncesNothing) {
  LaunchEnvironment who;
  who.job_id = "host session test";
  HostMeeting meeting = HostMeeting::on_socket(who, "world");
  meeting.is_alone = false;
  meeting.announced = {.meeting = 1, .world_size = 1};
  HostSession session(meeting, in(std::chrono::seconds(10)));
  HostMeeting other = HostMeeting::on_socket(who, "world");
  other.opens = false;
  other.announced = {.meeting = 1, .world_size = 3};
  EXPECT_EQ(test::fault_of([&] { HostSession(other, in(std::chrono::seconds(10))); }),
            Fault::misuse);
  EXPECT_EQ(session.page().announced(0, 1)->world_size, 1);
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
