// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/shm/regions.h"

#include <algorithm>

namespace lockstep {
namespace {

constexpr std::size_t page = 4096;
constexpr int offset_bits = 40;

std::size_t stride_of(std::size_t bytes) {
  return (std::max<std::size_t>(bytes, 1) + page - 1) / page * page;
}

}  // namespace

std::size_t Regions::bytes_for(std::size_t bytes, int ranks) {
  return stride_of(bytes) * static_cast<std::size_t>(ranks);
}

RegisteredMemory Regions::add(SharedMemory memory, std::size_t bytes, int rank) {
  forget_unused();
  auto region = std::make_shared<Region>(Region{std::move(memory), stride_of(bytes), ++made_});
  std::byte* mine = region->memory.get() + static_cast<std::size_t>(rank) * region->stride;
  by_part_[mine] = region;
  by_number_[region->number] = region;
  return RegisteredMemory(region, mine, bytes);
}

void Regions::forget_unused() {
  const auto unused = [](const auto& entry) { return entry.second.expired(); };
  std::erase_if(by_part_, unused);
  std::erase_if(by_number_, unused);
}

std::uint64_t Regions::locate(const Buffer& buffer) const {
  const auto* begin = static_cast<const std::byte*>(buffer.data);
  const auto after = by_part_.upper_bound(begin);
  if (after == by_part_.begin()) return 0;
  const auto& [part, weak] = *std::prev(after);
  const auto region = weak.lock();
  if (!region || begin + buffer.bytes() > part + region->stride) return 0;
  return region->number << offset_bits | static_cast<std::uint64_t>(begin - part);
}

std::byte* Regions::address(std::uint64_t location, int rank) const {
  const auto region = by_number_.at(region_of(location)).lock();
  return region->memory.get() + static_cast<std::size_t>(rank) * region->stride +
         (location & ((std::uint64_t{1} << offset_bits) - 1));
}

}  // namespace lockstep
