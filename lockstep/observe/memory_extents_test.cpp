// SPDX-License-Identifier: Apache-2.0
#include "lockstep/observe/memory_extents.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace lockstep::memory_extents_test {
namespace {

TEST(MemoryExtents, WhatOverlapsCountsOnce) {
  EXPECT_EQ(bytes_of_union({}), 0);
  EXPECT_EQ(bytes_of_union({{1, 1, 0, 8}, {1, 1, 0, 8}}), 8);
  EXPECT_EQ(bytes_of_union({{1, 1, 4, 8}, {1, 1, 0, 8}}), 12);
  EXPECT_EQ(bytes_of_union({{1, 1, 0, 100}, {1, 1, 10, 5}, {1, 1, 50, 60}}), 110);
  EXPECT_EQ(bytes_of_union({{1, 1, 0, 8}, {1, 1, 16, 8}}), 16);
}

TEST(MemoryExtents, FilesAndProcessesAreApart) {
  EXPECT_EQ(bytes_of_union({{1, 1, 0, 8}, {1, 2, 0, 8}, {2, 1, 0, 8}}), 24);
  EXPECT_EQ(bytes_of_union({{no_device, 1, 0, 8}, {no_device, 2, 0, 8}}), 16);
}

TEST(MemoryExtents, SharedMemoryIsKnownByItsPlaceInItsFile) {
  const Mapping shared{0x1000, 0x3000, true, 5, 6, 0x8000, 0};
  const Mapping own{0x4000, 0x5000, false, 5, 6, 0, 0};
  const auto at = [&](std::uintptr_t address) {
    return extent_of(reinterpret_cast<const void*>(address), 16, {shared, own});
  };
  EXPECT_EQ(at(0x1100), (Extent{5, 6, 0x8100, 16}));
  EXPECT_EQ(at(0x4100), (Extent{no_device, static_cast<std::uint64_t>(getpid()), 0x4100, 16}));
}

}  // namespace
}  // namespace lockstep::memory_extents_test
