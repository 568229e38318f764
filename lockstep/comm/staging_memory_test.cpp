// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/base/memory.h"
#include "lockstep/comm/comm.h"
#include "lockstep/comm/shm/group_segment.h"
#include "tests/fault_of.h"
#include "tests/ranks.h"
#include "tests/soon.h"

namespace lockstep::comm::staging_memory_test {
namespace {

using test::await_file;
using test::Rank;
using test::Ranks;

const std::size_t page = page_size();

struct Mapping {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

Mapping memory_of_world() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    if (line.find("/memfd:lockstep world of ") == line.npos) continue;
    EXPECT_EQ(std::sscanf(line.c_str(), "%lx-%lx", &begin, &end), 2);
    return {reinterpret_cast<std::byte*>(begin), end - begin};
  }
  ADD_FAILURE() << "no such memory";
  return {};
}

// Bytes that any rank has reserved.
std::size_t reserved(const Mapping& memory) {
  std::vector<unsigned char> pages(memory.bytes / page);
  EXPECT_EQ(::mincore(memory.data, memory.bytes, pages.data()), 0);
  return page * static_cast<std::size_t>(std::ranges::count_if(
                    pages, [](unsigned char state) { return (state & 1) != 0; }));
}

void add_up(const ProcessGroup& group, std::size_t count) {
  std::vector<float> values(count, 1.0F);
  group.all_reduce(buffer_of(values));
  EXPECT_EQ(values, std::vector<float>(count, static_cast<float>(group.size())));
}

const Ranks grow("staging buffers grow", [](const Rank& rank) {
  ProcessGroup world = init_process_group();
  const auto ranks = static_cast<std::size_t>(rank.world_size);
  const Mapping memory = memory_of_world();
  const std::size_t head = GroupSegment::head_bytes(rank.world_size);
  ASSERT_EQ(memory.bytes, GroupSegment::bytes_for(rank.world_size));
  world.barrier();
  EXPECT_EQ(reserved(memory), head);

  world.barrier();  // All ranks have read the sizes.
  add_up(world, 1);
  world.barrier();
  EXPECT_EQ(reserved(memory), head + ranks * GroupSegment::chunk_bytes);

  world.barrier();
  add_up(world, GroupSegment::staging_bytes(rank.world_size) / sizeof(float));
  world.barrier();
  EXPECT_EQ(reserved(memory), memory.bytes);
  destroy_process_group(world);
});

TEST(StagingMemory, IsTakenAsCollectivesNeedIt) { EXPECT_TRUE(test::all_succeeded(grow.run(3))); }

const Ranks run_short("one staging buffer cannot grow", [](const Rank& rank) {
  const ProcessGroup world = init_process_group();
  add_up(world, 1);
  // Rank 1 fails in a call in which rank 0 waits for it.
  if (rank.rank == 0) std::ofstream(rank.scratch / "ready");
  if (rank.rank == 1) {
    await_file(rank.scratch / "ready");
    const Mapping memory = memory_of_world();
    const std::size_t all = GroupSegment::staging_bytes(rank.world_size);
    std::byte* const rest = memory.data + memory.bytes - all + GroupSegment::chunk_bytes;
    ASSERT_EQ(::mprotect(rest, all - GroupSegment::chunk_bytes, PROT_READ), 0);
  }
  std::string text;
  const Fault fault = test::fault_of([&] { add_up(world, 1 << 18); }, &text);
  EXPECT_EQ(fault, rank.rank == 1 ? Fault::system : Fault::aborted) << text;
  EXPECT_NE(text.find("a staging buffer"), text.npos) << text;
});

TEST(StagingMemory, AShortageOnOneRankIsAnErrorOnAll) {
  EXPECT_TRUE(test::all_succeeded(run_short.run(2)));
}

}  // namespace
}  // namespace lockstep::comm::staging_memory_test
