// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/loop.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <optional>
#include <thread>
#include <vector>

namespace lockstep::launch::loop_test {
namespace {

using namespace std::chrono_literals;

class Blocked {
 public:
  Blocked() {
    ::sigemptyset(&signals_);
    ::sigaddset(&signals_, SIGUSR1);
    ::sigaddset(&signals_, SIGCHLD);
    ::pthread_sigmask(SIG_BLOCK, &signals_, &before_);
  }
  ~Blocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  Blocked(const Blocked&) = delete;
  Blocked& operator=(const Blocked&) = delete;

  const sigset_t& signals() const { return signals_; }

 private:
  sigset_t signals_{};
  sigset_t before_{};
};

class Due final : public Pollable {
 public:
  explicit Due(Deadline deadline) : deadline_(deadline) {}

  void watch(std::vector<pollfd>& /*entries*/) const override {}
  Deadline deadline() const override { return deadline_; }
  void serve(const std::vector<pollfd>& /*entries*/) override {}

 private:
  const Deadline deadline_;
};

TEST(Loop, WaitsForTheFirstDeadlineOfItsPartsAndTheLimit) {
  Due soon(in(20ms));
  Due later(in(1h));
  const auto start = Clock::now();
  EXPECT_TRUE(next_events({&later, &soon}).empty());
  EXPECT_GE(Clock::now() - start, 19ms);
  EXPECT_TRUE(next_events({&later}, in(20ms)).empty());
  EXPECT_LT(Clock::now() - start, 10s);
}

TEST(Loop, AReminderActsAtGrowingTimes) {
  int acts = 0;
  Reminder late(1h, [&] { ++acts; });
  late.serve({});
  EXPECT_EQ(acts, 0);
  Reminder reminder(10ms, [&] { ++acts; });
  const Deadline first = reminder.deadline();
  std::this_thread::sleep_until(first);
  reminder.serve({});
  EXPECT_EQ(acts, 1);
  EXPECT_GE(reminder.deadline() - first, 20ms);
}

TEST(Loop, ReturnsEveryPartsDescriptorsWithTheirEvents) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const FileDescriptor read_end(ends[0]);
  FileDescriptor write_end(ends[1]);
  Lifeline lifeline(read_end.get());
  const Blocked blocked;
  Signals signals(blocked.signals(), [](int) { FAIL() << "no signal was sent"; });

  lifeline.serve(next_events({&signals, &lifeline}, Clock::now()));
  EXPECT_FALSE(lifeline.is_cut());
  write_end = FileDescriptor();
  const std::vector<pollfd> entries = next_events({&signals, &lifeline});
  EXPECT_EQ(entries.size(), 2U);
  EXPECT_EQ(events_of(entries, read_end.get()), POLLHUP);
  signals.serve(entries);
  lifeline.serve(entries);
  EXPECT_TRUE(lifeline.is_cut());
}

TEST(EventsOf, FindsEachDescriptorInAnyOrder) {
  std::vector<pollfd> entries;
  for (short i = 0; i < 6; ++i) entries.push_back({10 + i, POLLIN, static_cast<short>(i + 1)});
  for (const int place : {0, 1, 2, 5, 4, 0, 5, 3, 3})
    EXPECT_EQ(events_of(entries, 10 + place), place + 1);
  EXPECT_EQ(events_of(entries, 99), 0);
  entries.resize(2);
  EXPECT_EQ(events_of(entries, 11), 2);
  EXPECT_EQ(events_of(entries, 10), 1);
  EXPECT_EQ(events_of({}, 10), 0);
}

TEST(Signals, TwoAtOnceAreOneExceptOfChildren) {
  const Blocked blocked;
  std::vector<int> received;
  std::optional<Signals> signals;
  const auto send = [&](int signal) {
    ::pthread_kill(::pthread_self(), signal);
    signals->serve(next_events({&*signals}));
  };
  Clock::time_point start;
  do {  // If this thread stands still between the signals, they are not at once.
    received.clear();
    signals.emplace(blocked.signals(), [&](int signal) { received.push_back(signal); });
    start = Clock::now();
    for (const int signal : {SIGUSR1, SIGCHLD, SIGCHLD, SIGUSR1}) send(signal);
  } while (Clock::now() - start >= 50ms);
  EXPECT_EQ(received, (std::vector{SIGUSR1, SIGCHLD, SIGCHLD}));
  std::this_thread::sleep_for(60ms);
  send(SIGUSR1);
  EXPECT_EQ(received.size(), 4U);
}

}  // namespace
}  // namespace lockstep::launch::loop_test
