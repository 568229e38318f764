// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/call_queue.h"

#include <gtest/gtest.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::comm::call_queue_test {
namespace {

using namespace std::chrono_literals;

constexpr CallQueue::Options is_short{.timeout = 10s};
constexpr CallQueue::Options is_long{.timeout = 10s, .is_long = true};

std::thread::id this_thread() { return std::this_thread::get_id(); }

TEST(CallQueue, RunsCallsInTheOrderOfTheirSubmission) {
  std::vector<int> order;
  CallQueue calls;
  for (int i = 0; i < 1000; ++i)
    calls.submit([&order, i] { order.push_back(i); }, i % 7 == 0 ? is_long : is_short);
  ASSERT_TRUE(calls.take_turn(10s, in(10s)));
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(order[static_cast<std::size_t>(i)], i);
}

TEST(CallQueue, AWaiterRunsWhatHasNotBegun) {
  CallQueue calls;
  std::vector<std::thread::id> by;
  const auto turn = std::make_unique<CallQueue::Turn>(calls.try_turn());
  ASSERT_TRUE(*turn);
  const Work first = calls.submit([&] { by.push_back(this_thread()); }, is_short);
  const Work second = calls.submit([&] { by.push_back(this_thread()); }, is_short);
  EXPECT_FALSE(calls.try_turn());
  auto waits = std::async(std::launch::async, [&] {
    second.wait();
    return this_thread();
  });
  EXPECT_EQ(waits.wait_for(20ms), std::future_status::timeout);  // Not their turn yet.
  EXPECT_TRUE(by.empty());
  *turn = {};
  waits.wait();
  EXPECT_TRUE(first.is_completed());
  EXPECT_EQ(by.size(), 2U);
}

TEST(CallQueue, TakesOverWhatNobodyWaitsFor) {
  CallQueue calls;
  std::promise<std::thread::id> by;
  const Work work = calls.submit([&] { by.set_value(this_thread()); }, is_short);
  EXPECT_NE(by.get_future().get(), this_thread());
  work.wait();
}

TEST(CallQueue, ABlockingCallRunsWhatIsBeforeItUnlessThatMayTakeLonger) {
  CallQueue calls;
  std::promise<void> release;
  const auto released = release.get_future().share();
  const Work work = calls.submit([&] { released.wait(); }, {.timeout = 1h});
  EXPECT_FALSE(calls.take_turn(20ms, in(20ms)));
  release.set_value();
  EXPECT_TRUE(calls.take_turn(10s, in(10s)));
  EXPECT_TRUE(work.is_completed());
}

TEST(CallQueue, BlockingCallsOfManyThreadsTakeTurns) {
  CallQueue calls;
  int count = 0;  // Not atomic.
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        auto turn = calls.try_turn();
        if (!turn) turn = calls.take_turn();
        ++count;
        turn = {};
        if (i % 4 == 0) calls.submit([&] { ++count; }, is_short).wait();
        if (i % 4 == 1) calls.submit([&] { ++count; }, is_long);
      }
    });
  threads.clear();
  const auto turn = calls.take_turn();
  EXPECT_EQ(count, 4 * 3000);
}

TEST(CallQueue, WaitThrowsWhatTheCallThrew) {
  CallQueue calls;
  const Work work = calls.submit([] { throw std::runtime_error("no"); }, is_short);
  EXPECT_THROW(work.wait(), std::runtime_error);
  EXPECT_TRUE(work.is_completed());
  EXPECT_NE(work.error(), nullptr);
  EXPECT_NO_THROW(calls.submit([] {}, is_short).wait());
}

TEST(CallQueue, WaitTimesOutAndTheCallContinues) {
  std::promise<void> release;
  CallQueue calls;
  const Work work = calls.submit([&] { release.get_future().wait(); }, is_short);
  try {
    work.wait(20ms);
    FAIL() << "did not time out";
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::timeout);
  }
  EXPECT_FALSE(work.is_completed());
  release.set_value();
  EXPECT_NO_THROW(work.wait());
}

TEST(CallQueue, DestructionLetsTheRunningCallEndAndAbortsTheOthers) {
  std::promise<void> started;
  std::promise<void> release;
  auto calls = std::make_unique<CallQueue>();
  const Work running = calls->submit(
      [&] {
        started.set_value();
        release.get_future().wait();
      },
      is_long);
  const Work waiting = calls->submit([] {}, is_short);
  started.get_future().wait();
  auto ending = std::async(std::launch::async, [&] { calls.reset(); });
  EXPECT_EQ(ending.wait_for(10ms), std::future_status::timeout) << "did not wait";
  release.set_value();
  ending.wait();
  EXPECT_NO_THROW(running.wait());
  EXPECT_THROW(waiting.wait(), Error);
}

// Ended by the queue's thread, and by a waiter.
TEST(CallQueue, MayEndWithinACall) {
  for (const bool waits : {false, true}) {
    auto calls = std::make_shared<CallQueue>();
    const std::weak_ptr<CallQueue> weak = calls;
    CallQueue::Turn turn = calls->try_turn();
    auto* const raw = calls.get();
    const Work last = raw->submit([owner = std::move(calls)] {}, is_short);
    const Work never = weak.lock()->submit([] {}, is_short);
    turn = {};
    if (waits) last.wait();
    EXPECT_THROW(never.wait(), Error);
    last.wait();
    EXPECT_TRUE(weak.expired());
  }
}

int sleeps_of(pid_t thread) {
  std::ifstream status("/proc/self/task/" + std::to_string(thread) + "/status");
  const std::string key = "voluntary_ctxt_switches:";
  for (std::string word; status >> word;)
    if (word == key) {
      int count = 0;
      status >> count;
      return count;
    }
  return -1;
}

TEST(CallQueue, ItsThreadSleepsWhileOthersWaitForTheirTurn) {
  CallQueue calls;
  std::promise<pid_t> thread;
  calls.submit([&] { thread.set_value(::gettid()); }, is_long);
  const pid_t its_thread = thread.get_future().get();
  CallQueue::Turn running = calls.take_turn();
  std::jthread waits([&] { EXPECT_TRUE(calls.take_turn()); });
  std::this_thread::sleep_for(20ms);  // Lets the waiter come first.
  std::promise<void> ran;
  const Work behind = calls.submit([&] { ran.set_value(); }, is_short);
  std::this_thread::sleep_for(20ms);  // The thread has found nothing to do.
  const int before = sleeps_of(its_thread);
  std::this_thread::sleep_for(200ms);
  EXPECT_LE(sleeps_of(its_thread), before + 5) << "it looks again and again";
  EXPECT_GE(before, 0);
  running = {};
  ran.get_future().wait();
}

TEST(CallQueue, ActsMayBeginAndAwaitCalls) {
  CallQueue calls;
  std::promise<void> all;
  const Work work = calls.submit([] {}, is_short);
  work.on_completion([&] {
    calls.submit([] {}, is_short).wait();
    EXPECT_TRUE(calls.take_turn());
    all.set_value();
  });
  all.get_future().wait();
}

}  // namespace
}  // namespace lockstep::comm::call_queue_test
