// SPDX-License-Identifier: Apache-2.0
#include "lockstep/observe/process_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <sstream>
#include <vector>

#include "tests/fault_of.h"

namespace lockstep::observe::process_memory_test {
namespace {

constexpr const char* text =
    R"(55ebe8e2f000-55ebe8e31000 r--p 00001000 fd:01 917526    /usr/bin/with space: x
Size:                  8 kB
Rss:                   8 kB
Pss:                   4 kB
Pss_Dirty:             1 kB
VmFlags: rd mr mw me sd
7f0e00000000-7f0e00200000 rw-s 00003000 00:01 1042    /memfd:lockstep (deleted)
Size:               2048 kB
Pss:                1024 kB
Pss_Dirty:          1024 kB
Locked:                0 kB
VmFlags: rd wr sh mr mw me ms sd
7f0e00200000-7f0e00300000 rw-p 00000000 00:00 0
Pss:                 512 kB
)";

TEST(ProcessMemory, MappingsAreReadFromSmaps) {
  std::istringstream smaps(text);
  const std::vector<Mapping> mappings = read_smaps(smaps);
  ASSERT_EQ(mappings.size(), 3);
  EXPECT_FALSE(mappings[0].is_shared);
  EXPECT_EQ(mappings[0].device, (std::uint64_t{0xfd} << 32) + 1);
  EXPECT_EQ(mappings[0].proportional_bytes, 4 << 10);
  EXPECT_TRUE(mappings[1].is_shared);
  EXPECT_EQ(mappings[1].begin, 0x7f0e00000000);
  EXPECT_EQ(mappings[1].end, 0x7f0e00200000);
  EXPECT_EQ(mappings[1].offset, 0x3000);
  EXPECT_EQ(mappings[1].inode, 1042);
  EXPECT_EQ(mappings[1].proportional_bytes, 1 << 20);
  EXPECT_EQ(mappings[2].inode, 0);
}

TEST(ProcessMemory, AnAddressIsFoundInItsMapping) {
  std::istringstream smaps(text);
  const std::vector<Mapping> mappings = read_smaps(smaps);
  EXPECT_EQ(find_mapping(mappings, 0x7f0e001fffff), &mappings[1]);
  EXPECT_EQ(find_mapping(mappings, 0x7f0e00200000), &mappings[2]);
  EXPECT_EQ(find_mapping(mappings, 0x7f0e00300000), nullptr);
}

TEST(ProcessMemory, TheSumOfAllMappingsIsThatOfTheProcess) {
  std::istringstream smaps(text);
  EXPECT_EQ(read_proportional_bytes(smaps), 1540 << 10);
}

TEST(ProcessMemory, RejectsTextThatIsNotSmaps) {
  std::istringstream other("something else: altogether");
  EXPECT_EQ(test::fault_of([&] { read_smaps(other); }), Fault::corrupt);
}

TEST(ProcessMemory, IncludesTouchedPages) {
  constexpr std::size_t bytes = 64 << 20;
  const std::size_t before = proportional_bytes_of_this_process();
  const std::vector<char> touched(bytes, 1);
  const std::size_t more = proportional_bytes_of_this_process() - before;
  // This process's share of a library's pages changes as other programs start and end.
  EXPECT_GE(more, bytes - (1 << 20));
  EXPECT_LT(more, bytes + (1 << 20));
  const std::vector<Mapping> mappings = mappings_of_this_process();
  EXPECT_NE(find_mapping(mappings, reinterpret_cast<std::uintptr_t>(touched.data())), nullptr);
}

TEST(MemoryExtents, CountOverlapsOnce) {
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
}  // namespace lockstep::observe::process_memory_test
