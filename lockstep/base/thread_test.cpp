// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/thread.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <cstddef>
#include <memory>

#include "tests/small_stacks.h"

namespace lockstep::thread_test {
namespace {

void touch_a_mebibyte_of_stack() {
  volatile char frame[std::size_t{1} << 20];
  for (std::size_t i = 0; i < sizeof frame; i += 4096) frame[i] = 1;
}

TEST(Thread, HasRoomForALargeFrameWhereOthersHaveLittle) {
  const test::SmallStacks others;
  Thread thread = start_thread(touch_a_mebibyte_of_stack);
  thread.join();
  EXPECT_FALSE(thread.joinable());
}

TEST(Thread, OfOursGetsNoSignals) {
  std::atomic<bool> blocked = false;
  Thread thread = start_thread(
      [&](const std::unique_ptr<int>&) {
        sigset_t mask;
        ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
        blocked = ::sigismember(&mask, SIGTERM) == 1;
      },
      std::make_unique<int>(1));
  thread.join();
  EXPECT_TRUE(blocked);
}

TEST(Thread, KnowsWhetherItIsTheOneThatRuns) {
  std::atomic<Thread*> self = nullptr;
  std::atomic<bool> is_current = false;
  Thread thread([&] {
    while (self == nullptr) continue;
    is_current = self.load()->is_current();
  });
  self = &thread;
  EXPECT_FALSE(thread.is_current());
  thread.join();
  EXPECT_TRUE(is_current);
}

}  // namespace
}  // namespace lockstep::thread_test
