// SPDX-License-Identifier: Apache-2.0
#include "lockstep/comm/shm/regions.h"

#include <algorithm>

#include "lockstep/base/error.h"

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
  std::erase_if(regions_, [](const Region& region) { return region.owner.expired(); });
  const std::size_t stride = stride_of(bytes);
  check(
      made_ + 1 < std::uint64_t{1} << (64 - offset_bits) && stride < std::size_t{1} << offset_bits,
      "a region is too large, or one of too many, to be told to peers");
  std::byte* const all = memory.get();
  std::byte* const mine = all + static_cast<std::size_t>(rank) * stride;
  // A separate owner: the memory itself may have other owners.
  const auto owner = std::make_shared<const SharedMemory>(std::move(memory));
  regions_.push_back({++made_, all, stride, mine, owner});
  return RegisteredMemory(owner, mine, bytes);
}

std::uint64_t Regions::locate(const Buffer& buffer) const {
  const auto* begin = static_cast<const std::byte*>(buffer.data);
  for (const Region& region : regions_) {
    if (begin < region.mine || begin >= region.mine + region.stride) continue;
    const auto offset = static_cast<std::uint64_t>(begin - region.mine);
    const bool within = offset + buffer.bytes() <= region.stride && !region.owner.expired();
    if (within) return region.number << offset_bits | offset;
  }
  return 0;
}

std::byte* Regions::address(std::uint64_t location, int rank) const {
  for (const Region& region : regions_)
    if (region.number == region_of(location))
      return region.all + static_cast<std::size_t>(rank) * region.stride +
             (location & ((std::uint64_t{1} << offset_bits) - 1));
  throw Error(Fault::bug, "a peer's registered memory is not known here");
}

}  // namespace lockstep
