// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/thread.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <thread>

#include "tests/small_stacks.h"

namespace lockstep::base::thread_test {
namespace {

bool kernel_has_slices() {
  utsname system{};
  int major = 0;
  int minor = 0;
  ::uname(&system);
  std::sscanf(system.release, "%d.%d", &major, &minor);
  return major > 6 || (major == 6 && minor >= 12);
}

// This thread's slice, in ns.
std::uint64_t slice() {
  unsigned char attributes[48] = {};
  EXPECT_EQ(::syscall(SYS_sched_getattr, 0, attributes, sizeof attributes, 0), 0);
  std::uint64_t runtime = 0;
  std::memcpy(&runtime, attributes + 24, sizeof runtime);
  return runtime;
}

TEST(ShortSlices, AreThoseOfTheThreadThatAsksAndOfThoseThatItStarts) {
  if (!kernel_has_slices()) GTEST_SKIP() << "this kernel has no slices to choose (before 6.12)";
  const std::uint64_t before = slice();
  std::thread([&] {
    ask_for_short_slices();
    EXPECT_EQ(slice(), 100'000u);
    std::thread([] { EXPECT_EQ(slice(), 100'000u); }).join();
  }).join();
  EXPECT_EQ(slice(), before);
}

TEST(ShortSlices, LeaveOtherPoliciesAlone) {
  std::thread([] {
    const sched_param parameters{};
    ASSERT_EQ(::sched_setscheduler(0, SCHED_BATCH, &parameters), 0);
    const std::uint64_t before = slice();
    ask_for_short_slices();
    EXPECT_EQ(slice(), before);
    EXPECT_EQ(::sched_getscheduler(0), SCHED_BATCH);
  }).join();
}

void touch_a_mebibyte_of_stack() {
  volatile char frame[std::size_t{1} << 20];
  for (std::size_t i = 0; i < sizeof frame; i += 4096) frame[i] = 1;
}

TEST(Thread, HasStackSpaceForALargeFrameWhenOtherStacksAreSmall) {
  const test::SmallStacks others;
  Thread thread = start_thread(touch_a_mebibyte_of_stack);
  thread.join();
  EXPECT_FALSE(thread.joinable());
}

TEST(Thread, ReceivesNoSignals) {
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
}  // namespace lockstep::base::thread_test
