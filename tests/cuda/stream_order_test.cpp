// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/stream_order.h"

#include <gtest/gtest.h>

#include <array>

namespace lockstep::test {
namespace {

using enum StreamOrder::Kind;

class Streams : public testing::Test {
 protected:
  Streams() { order.allocate(0, all); }
  std::size_t faults() { return order.take_faults().size(); }

  std::array<std::byte, 100> bytes{};
  const StreamOrder::Memory all{bytes};
  const StreamOrder::Memory first = all.first(60);
  const StreamOrder::Memory last = all.last(60);
  StreamOrder order;
};

TEST_F(Streams, MustWaitForWhatAnotherHasWritten) {
  order.use(0, first, write);
  order.use(1, last, read);
  EXPECT_EQ(order.take_faults(),
            (std::vector<std::string>{
                "stream 1 read 60 bytes that stream 0 wrote, and had not waited for it"}));
}

TEST_F(Streams, MustWaitBeforeTheyWriteWhatAnotherHasRead) {
  order.use(0, first, read);
  order.use(1, first, read);
  EXPECT_EQ(faults(), 0);
  order.use(1, all, write);
  EXPECT_EQ(faults(), 1);
}

TEST_F(Streams, MayUseOtherBytesWhenTheyLike) {
  order.use(0, all.first(40), write);
  order.use(1, all.last(60), write);
  EXPECT_EQ(faults(), 0);
}

TEST_F(Streams, AreInOrderAfterAnEventThatComesAfterTheUse) {
  const auto early = order.record(0);
  order.use(0, all, write);
  const auto late = order.record(0);
  order.wait(1, early);
  order.use(1, all, read);
  EXPECT_EQ(faults(), 1);
  order.wait(1, late);
  order.use(1, all, read);
  EXPECT_EQ(faults(), 0);
  order.wait(2, order.record(1));  // Order also holds through another stream.
  order.use(2, all, write);
  EXPECT_EQ(faults(), 0);
}

TEST_F(Streams, AreInOrderAfterTheHostHasWaited) {
  order.use(1, all, write);
  order.wait_on_host(order.record(1));
  order.use(0, all, write);
  order.use(5, all.first(1), read);  // It did not exist yet.
  EXPECT_EQ(faults(), 1) << "of what stream 0 wrote";
  order.wait_on_host();
  order.use(6, all, write);
  EXPECT_EQ(faults(), 0);
}

TEST_F(Streams, MustBeDoneWithMemoryThatIsFreed) {
  order.wait(1, order.record(0));
  order.use(1, all, read);
  EXPECT_TRUE(order.free(all.data()));
  EXPECT_EQ(faults(), 1);
  EXPECT_FALSE(order.free(all.data()));

  order.allocate(0, all);
  order.use(1, all, read);
  order.keep_for(1, all.data());
  order.free(all.data());
  order.allocate(0, all);
  order.use(1, all, read);
  order.wait(0, order.record(1));
  order.free(all.data());
  EXPECT_EQ(faults(), 0);
}

}  // namespace
}  // namespace lockstep::test
