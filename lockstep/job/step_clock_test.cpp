// SPDX-License-Identifier: Apache-2.0
#include "lockstep/job/step_clock.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "lockstep/job/step_times.h"
#include "tests/optimized_code.h"

namespace lockstep::job::step_clock_test {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::nanoseconds a_bit = 3ms;

void work() { std::this_thread::sleep_for(a_bit); }

TEST(StepTimes, ExcludeAnInnerPhaseFromTheOuterOne) {
  const StepClock::OfThread clock;
  const auto before = Clock::now();
  auto begin = before;
  {
    const InPhase forward(StepPhase::forward);
    begin = Clock::now();
    work();
    {
      const InPhase data(StepPhase::data);
      work();
      work();
    }
    work();
  }
  work();
  const auto end = Clock::now();
  const StepTimes times = step_times();
  const auto after = Clock::now();
  EXPECT_GE(times[StepPhase::forward], 2 * a_bit);
  EXPECT_GE(times[StepPhase::data], 2 * a_bit);
  EXPECT_GE(times[StepPhase::other], a_bit);
  EXPECT_EQ(times[StepPhase::wait], 0ns);
  constexpr auto apart = 1ms;  // Tolerance between the two clocks.
  EXPECT_GE(times.total(), end - begin - apart);
  EXPECT_LE(times.total(), after - before + apart);
}

TEST(StepTimes, IncludeTheCurrentPhase) {
  const StepClock::OfThread clock;
  const InPhase data(StepPhase::data);
  const StepTimes before = step_times();
  work();
  EXPECT_GE((step_times() - before)[StepPhase::data], a_bit);
}

// As GroupCollectives do.
TEST(StepTimes, ReportTheRanksThatALoopWaitedFor) {
  const StepClock::OfThread mine;
  StepClock& clock = *StepClock::of_this_thread();
  const InPhase backward(StepPhase::backward);
  // All waits are equal, because the host may delay one of them.
  const Ticks begin = ticks_now();
  work();
  Ticks now = ticks_now();
  const Ticks wait = now - begin;
  for (const int last : {3, 3, 1, 3, 3}) {
    const StepPhase before = clock.enter(StepPhase::wait, now);
    EXPECT_EQ(before, StepPhase::backward);
    now += wait;
    clock.end_wait(last, now);
    clock.enter(before, now);
  }
  clock.enter(StepPhase::wait, now);
  clock.end_wait(std::nullopt, 0);  // No rank was late.
  clock.enter(StepPhase::backward, now + wait);
  const StepTimes times = step_times();
  EXPECT_EQ(times.latest_rank(), 3);
  EXPECT_GE(times.waited_for.at(3), 4 * a_bit);
  EXPECT_GE(times.waited_for.at(1), a_bit);
  EXPECT_EQ(times.waited_for.size(), 2U);
  const auto apart = times[StepPhase::wait] - times.waited_for.at(1) - times.waited_for.at(3);
  EXPECT_LT(std::chrono::abs(apart), 100ns) << "rounded";
  EXPECT_GE(times[StepPhase::reduce], a_bit);
}

TEST(StepTimes, AreOfOneThreadUntilItEnds) {
  const auto data_of = [] {
    const auto before = step_times()[StepPhase::data];
    {
      const InPhase data(StepPhase::data);
      work();
    }
    return step_times()[StepPhase::data] - before;
  };
  EXPECT_EQ(StepClock::of_this_thread(), nullptr) << "this test must be the first of its process";
  std::thread first([&] {
    EXPECT_GE(data_of(), a_bit);
    std::thread([&] { EXPECT_EQ(data_of(), 0ns); }).join();
  });
  first.join();
  std::thread([&] { EXPECT_GE(data_of(), a_bit); }).join();
}

TEST(StepTimes, CountABackgroundCollectiveWhileTheLoopWaitsForIt) {
  std::thread([] {
    const InPhase backward(StepPhase::backward);
    const StepTimes before = step_times();
    work();
    const Ticks begin = ticks_now();
    work();
    {
      const StepClock::Lent lent;
      std::thread([&] {
        ASSERT_EQ(StepClock::of_this_thread(), nullptr);
        work();
        StepClock::book_wait_of_helper(5, begin, ticks_now());
        work();
      }).join();
    }
    StepClock::book_wait_of_helper(4, begin, ticks_now());  // The wait has already ended.
    const StepTimes times = step_times() - before;
    EXPECT_EQ(times.latest_rank(), 5);
    EXPECT_EQ(times.waited_for.size(), 1U);
    EXPECT_GE(times[StepPhase::wait], a_bit);
    EXPECT_GE(times[StepPhase::reduce], a_bit);
    EXPECT_GE(times[StepPhase::backward], 2 * a_bit) << "before the loop waited";
  }).join();
}

// The fewest nanoseconds of an action: even on a busy host, some of many short rounds are not
// interrupted.
double least_cost(const std::function<void()>& action) {
  constexpr int repeats = 50;
  std::chrono::nanoseconds best = 1h;
  for (int round = 0; round < 1000; ++round) {
    const auto begin = Clock::now();
    for (int i = 0; i < repeats; ++i) action();
    best = std::min<std::chrono::nanoseconds>(best, Clock::now() - begin);
  }
  return static_cast<double>(best.count()) / repeats;
}

// The clock's work in a step of data-parallel training: six phases, and eight collectives in which
// it waits for another rank. The processor's counter is read 36 times, which takes most of the
// time: 7 to 30 ns each, depending on the host.
TEST(StepTimes, CostLittleMoreThanReadingTheCounter) {
  if (!test::is_optimized_code) GTEST_SKIP() << "the time of optimized code is measured";
  const StepClock::OfThread mine;
  StepClock& clock = *StepClock::of_this_thread();
  const double step = least_cost([&] {
    for (int i = 0; i < 6; ++i) const InPhase forward(StepPhase::forward);
    for (int i = 0; i < 8; ++i) {
      const StepPhase before = clock.enter(StepPhase::wait, ticks_now());
      clock.end_wait(i, ticks_now());
      clock.enter(before);
    }
    clock.count_step();
  });
  Ticks sum = 0;
  const double readings = least_cost([&] {
    for (int i = 0; i < 36; ++i) sum += ticks_now();
  });
  EXPECT_NE(sum, Ticks{0});
  RecordProperty("nanoseconds_a_step", static_cast<int>(step));
  RecordProperty("nanoseconds_of_readings", static_cast<int>(readings));
  EXPECT_LT(step, 4 * readings);
}

TEST(StepTimes, AreDescribedInTheOrderOfAStep) {
  StepTimes times{.steps = 10};
  EXPECT_EQ(describe(times), "");
  const auto set = [&](StepPhase phase, std::chrono::nanoseconds time) {
    times.spent[static_cast<std::size_t>(phase)] = time;
  };
  set(StepPhase::other, 100ms);
  set(StepPhase::wait, 51ms);
  set(StepPhase::forward, 348ms);
  set(StepPhase::backward, 500ms);
  set(StepPhase::checkpoint, 1ms);
  times.waited_for = {{1, 10ms}, {3, 41ms}};
  EXPECT_EQ(describe(times), "forward 35 %, backward 50 %, wait 5 % for rank 3, other 10 %");
  EXPECT_EQ(describe(times, StepPhase::data), "data 0 %");
}

TEST(SharedStepTimes, ShowTheTimesThatWereWritten) {
  SharedStepTimes shared{};
  EXPECT_EQ(shared.shown().total(), 0ns);
  EXPECT_EQ(shared.shown().latest_rank(), -1);
  StepTimes times{.steps = 7};
  times.spent[static_cast<std::size_t>(StepPhase::wait)] = 5ms;
  times.waited_for = {{0, 1ms}, {2, 4ms}};
  shared.show(times);
  EXPECT_EQ(shared.shown().steps, 7);
  EXPECT_EQ(shared.shown()[StepPhase::wait], 5ms);
  EXPECT_EQ(shared.shown().waited_for, times.waited_for);
  shared.show({});
  EXPECT_EQ(shared.shown().latest_rank(), -1);
}

TEST(SharedStepTimes, ShowTheLongestWaitsOfMany) {
  SharedStepTimes shared{};
  StepTimes times;
  for (int rank = 0; rank < 100; ++rank) times.waited_for[rank] = rank * 1ms;
  shared.show(times);
  EXPECT_EQ(shared.shown().waited_for.size(), 8U);
  EXPECT_EQ(shared.shown().waited_for.begin()->first, 92);
  EXPECT_EQ(shared.shown().waited_for.at(99), 99ms);
}

TEST(StepTimes, SinceTheFirstStepLeaveOutWhatCameBefore) {
  const StepClock::OfThread mine;
  StepClock& clock = *StepClock::of_this_thread();
  {
    const InPhase data(StepPhase::data);
    work();
  }
  EXPECT_EQ(clock.since_first_step().total(), 0ns);
  clock.count_step();
  EXPECT_EQ(clock.since_first_step().steps, 0);
  clock.enter(StepPhase::forward);
  work();
  clock.count_step();
  const StepTimes times = clock.since_first_step();
  EXPECT_EQ(times.steps, 1);
  EXPECT_EQ(times[StepPhase::data], 0ns);
  EXPECT_GE(times[StepPhase::forward], a_bit);
  EXPECT_EQ(clock.times().steps, 2);
}

TEST(RecentTimes, AreOfTheLastTen) {
  RecentTimes recent;
  StepTimes now;
  for (int second = 1; second <= 15; ++second) {
    now.steps += 100;
    EXPECT_EQ(recent.since_then(now).steps, 100 * std::min(second, 10));
  }
}

TEST(StepTimes, CanBeReadInAChildThatWasForkedAmidAChange) {
  StepClock& clock = StepClock::of_process();
  std::atomic<bool> ends = false;
  std::thread changes([&] {
    while (!ends) {
      clock.enter(StepPhase::forward);
      clock.enter(StepPhase::other);
    }
  });
  for (int i = 0; i < 200; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(20);  // Ends a child whose read does not return.
      ::_exit(clock.times().total() >= 0ns ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0) << "child " << i;
    if (status != 0) break;
  }
  ends = true;
  changes.join();
}

}  // namespace
}  // namespace lockstep::job::step_clock_test
