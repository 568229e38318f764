// Counts what collectives do, in the memory that ranks share, for scale_test.py:
//   lockstep run -n N scale_counts OPERATION:MEMORY:BYTES...
// Rank 0 prints how often ranks waited for each other, and how many bytes of staging buffers and
// outputs all of them wrote. These are all writes as long as staging buffers hold all of the data.

// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/comm/shm/group_segment.h"

namespace {

using lockstep::Buffer;
using lockstep::ProcessGroup;
using lockstep::comm::GroupSegment;
using lockstep::comm::RankBlock;

constexpr std::uint32_t one = 0x3F800000;        // 1.0F
constexpr std::uint32_t untouched = 0xA5A5A5A5;  // No value of the buffers has these bytes.

// The world's shared memory, as the kernel lists it.
GroupSegment segment_of(const ProcessGroup& world) {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (line.find("/memfd:lockstep world of ") != line.npos)
      return {lockstep::comm::SharedMemory(
                  reinterpret_cast<std::byte*>(std::stoull(line, nullptr, 16)), [](auto*) {}),
              world.size()};
  throw std::runtime_error("the world's shared memory is not in /proc/self/maps");
}

// Makes all ranks reserve all of their staging buffers: a page must be untouched until then.
void reserve_staging(const ProcessGroup& world) {
  std::vector<float> room(GroupSegment::staging_bytes(world.size()) / sizeof(float));
  world.all_reduce({.data = room.data(), .count = room.size()});
}

struct Case {
  std::string operation;
  std::string memory;
  std::size_t bytes = 0;  // Size of the larger buffer.
};

Case parse_case(std::string text) {
  std::replace(text.begin(), text.end(), ':', ' ');
  std::istringstream in(text);
  Case work;
  in >> work.operation >> work.memory >> work.bytes;
  if (!in) throw std::invalid_argument("not a case: " + text);
  return work;
}

class Memory {
 public:
  Memory(bool registered, std::size_t count, const ProcessGroup& world) : count_(count) {
    if (registered)
      registered_ = world.allocate(count * 4);
    else
      any_.resize(count);
  }
  std::span<std::uint32_t> words() {
    if (!registered_) return any_;
    return {static_cast<std::uint32_t*>(registered_->data()), count_};
  }
  Buffer part(std::size_t count) { return {.data = words().data(), .count = count}; }

 private:
  std::size_t count_;
  std::optional<lockstep::RegisteredMemory> registered_;
  std::vector<std::uint32_t> any_;
};

std::int64_t bytes_changed(std::span<const std::uint32_t> words, std::uint32_t from) {
  return 4 * std::count_if(words.begin(), words.end(), [=](auto word) { return word != from; });
}

std::uint32_t rendezvous(const RankBlock& block) {
  return block.step.value +
         std::max(block.entry[0].arrived.value.load(), block.entry[1].arrived.value.load());
}

// Returns the bytes that the call wrote to this rank's output.
std::int64_t call(const Case& work, const ProcessGroup& world, Memory& input, Memory& output) {
  const std::size_t count = work.bytes / 4;
  const std::size_t part = count / static_cast<std::size_t>(world.size());
  const bool is_sum = work.operation == "all_reduce";
  if (work.operation == "barrier") {
    world.barrier();
  } else if (is_sum) {
    world.all_reduce(input.part(count));
  } else if (work.operation == "broadcast") {
    if (world.rank() == 0) std::ranges::fill(output.words(), one);
    world.broadcast(output.part(count), 0);
  } else if (work.operation == "all_gather") {
    world.all_gather(input.part(part), output.part(count));
  } else if (work.operation == "reduce_scatter") {
    world.reduce_scatter(input.part(count), output.part(part));
  } else {
    throw std::invalid_argument("no operation " + work.operation);
  }
  world.barrier();  // All ranks have written their data.
  if (work.operation == "broadcast" && world.rank() == 0) return 0;
  return is_sum ? bytes_changed(input.words(), one) : bytes_changed(output.words(), untouched);
}

void count(const Case& work, const ProcessGroup& world, const GroupSegment& segment) {
  const std::size_t words = std::max<std::size_t>(1, work.bytes / 4);
  const bool registered = work.memory == "registered";
  Memory input(registered, words, world), output(registered, words, world);
  std::ranges::fill(input.words(), one);
  std::ranges::fill(output.words(), untouched);
  const std::span staging(reinterpret_cast<std::uint32_t*>(segment.staging(world.rank())),
                          GroupSegment::staging_bytes(world.size()) / 4);
  world.barrier();  // No rank reads this rank's staging buffer any more.
  std::ranges::fill(staging, untouched);
  world.barrier();
  const RankBlock& block = segment.block(world.rank());
  const std::uint32_t before = rendezvous(block);
  std::int64_t written = call(work, world, input, output);
  const std::uint32_t after = rendezvous(block) - 1;  // The barrier that follows the call.
  written += bytes_changed(staging, untouched);
  world.all_reduce({.data = &written, .count = 1, .dtype = lockstep::DType::int64});
  if (world.rank() == 0)
    std::printf("counts %s %s %zu %u %lld\n", work.operation.c_str(), work.memory.c_str(),
                work.bytes, after - before, static_cast<long long>(written));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    auto world = lockstep::init_process_group();
    const GroupSegment segment = segment_of(world);
    if (world.rank() == 0)
      std::printf("segment %zu %zu\n", sizeof(RankBlock),
                  GroupSegment::staging_bytes(world.size()));
    reserve_staging(world);
    for (int i = 1; i < argc; ++i) count(parse_case(argv[i]), world, segment);
    lockstep::destroy_process_group(world);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "scale_counts: %s\n", error.what());
    return 1;
  }
}
