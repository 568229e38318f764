// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/progress.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <stdexcept>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::comm::progress_test {
namespace {

using namespace std::chrono_literals;

TEST(ProgressThread, RunsTasksInTheOrderOfTheirSubmission) {
  std::vector<int> order;
  ProgressThread progress;
  for (int i = 0; i < 1000; ++i) progress.submit([&order, i] { order.push_back(i); });
  ASSERT_TRUE(progress.wait_until_idle(in(10s)));
  for (int i = 0; i < 1000; ++i) ASSERT_EQ(order[static_cast<std::size_t>(i)], i);
}

TEST(ProgressThread, WaitThrowsWhatTheTaskThrew) {
  ProgressThread progress;
  const Work work = progress.submit([] { throw std::runtime_error("no"); });
  EXPECT_THROW(work.wait(), std::runtime_error);
  EXPECT_TRUE(work.completed());
  EXPECT_NE(work.error(), nullptr);
  EXPECT_NO_THROW(progress.submit([] {}).wait());
}

TEST(ProgressThread, WaitGivesUpAtItsDeadlineAndTheTaskGoesOn) {
  std::promise<void> release;
  ProgressThread progress;
  const Work work = progress.submit([&] { release.get_future().wait(); });
  try {
    work.wait(in(20ms));
    FAIL() << "did not time out";
  } catch (const Error& error) {
    EXPECT_EQ(error.fault(), Fault::timeout);
  }
  EXPECT_FALSE(work.completed());
  release.set_value();
  EXPECT_NO_THROW(work.wait());
}

TEST(ProgressThread, DestructionLetsTheRunningTaskEndAndAbortsTheOthers) {
  std::promise<void> started;
  std::promise<void> release;
  auto progress = std::make_unique<ProgressThread>();
  const Work running = progress->submit([&] {
    started.set_value();
    release.get_future().wait();
  });
  const Work waiting = progress->submit([] {});
  started.get_future().wait();
  auto ending = std::async(std::launch::async, [&] { progress.reset(); });
  while (ending.wait_for(10ms) != std::future_status::timeout) FAIL() << "did not wait";
  release.set_value();
  ending.wait();
  EXPECT_NO_THROW(running.wait());
  EXPECT_THROW(waiting.wait(), Error);
}

}  // namespace
}  // namespace lockstep::comm::progress_test
