// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/short_slices.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <thread>

namespace lockstep::short_slices_test {
namespace {

bool kernel_has_slices() {
  utsname system{};
  int major = 0;
  int minor = 0;
  ::uname(&system);
  std::sscanf(system.release, "%d.%d", &major, &minor);
  return major > 6 || (major == 6 && minor >= 12);
}

// Returns the slice of this thread, in ns.
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

}  // namespace
}  // namespace lockstep::short_slices_test
