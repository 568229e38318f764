// SPDX-License-Identifier: Apache-2.0
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <thread>

#include "lockstep/parallel/gradients/bucket_reduction.h"
#include "tests/cuda/stand_in_cuda.h"

namespace lockstep::reduction_stream_test {
namespace {

using namespace test;
using Kind = StreamEntry::Kind;

const c10::Device device(c10::DeviceType::CUDA, 2);

class ReductionStreamOnCuda : public testing::Test {
 protected:
  void SetUp() override {
    if (!stand_in_for_cuda()) GTEST_SKIP() << "LibTorch has CUDA itself";
    take_stream_entries(device.index());
  }
};

c10::Stream current() { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

void call() { note_call(device.index(), current().native_handle()); }

TEST_F(ReductionStreamOnCuda, MakesJobsWaitForEveryStreamThatWroteAndTheCallerForTheJobs) {
  parallel::ReductionStream stream(device);
  const c10::Stream other =
      c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device);
  {
    const c10::StreamGuard guard(other);
    stream.follow();
  }
  const auto job = stream.after_writes(call);
  EXPECT_TRUE(take_stream_entries(device.index()).empty()) << "nothing waits before the job runs";
  call();  // Does not wait for later work.
  std::jthread(job).join();
  EXPECT_EQ(current().id(), 0);
  stream.join();
  stream.join();  // No work is left.

  const auto entries = take_stream_entries(device.index());
  ASSERT_EQ(entries.size(), 5U);
  const c10::StreamId side = entries[3].stream;
  EXPECT_NE(side, 0);
  EXPECT_NE(side, other.id());
  EXPECT_EQ(entries[1].kind, Kind::wait);
  EXPECT_EQ(entries[1].stream, side);
  EXPECT_EQ(entries[1].waits_for, other.id());
  EXPECT_EQ(entries[2].kind, Kind::wait);
  EXPECT_EQ(entries[2].stream, side);
  EXPECT_EQ(entries[2].waits_for, 0);
  EXPECT_EQ(entries[2].recorded_after, 0U);
  EXPECT_EQ(entries[3].kind, Kind::call);
  EXPECT_EQ(entries[4].kind, Kind::wait);
  EXPECT_EQ(entries[4].stream, 0);
  EXPECT_EQ(entries[4].waits_for, side);
  EXPECT_EQ(entries[4].recorded_after, 4U) << "after what the job enqueued";
}

TEST_F(ReductionStreamOnCuda, FollowsNoStreamOfAnEarlierPass) {
  parallel::ReductionStream stream(device);
  {
    const c10::StreamGuard guard(
        c10::impl::VirtualGuardImpl(device.type()).getStreamFromGlobalPool(device));
    stream.follow();
  }
  stream.join();
  stream.after_writes(call)();
  const auto entries = take_stream_entries(device.index());
  ASSERT_EQ(entries.size(), 2U);
  EXPECT_EQ(entries[0].waits_for, 0);
}

TEST_F(ReductionStreamOnCuda, LeavesJobsInCpuMemoryAlone) {
  parallel::ReductionStream stream(c10::DeviceType::CPU);
  bool called = false;
  stream.follow();
  stream.after_writes([&] { called = true; })();
  stream.join();
  EXPECT_TRUE(called);
  EXPECT_TRUE(take_stream_entries(device.index()).empty());
}

}  // namespace
}  // namespace lockstep::reduction_stream_test
