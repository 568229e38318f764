// SPDX-License-Identifier: Apache-2.0
#include "lockstep/observe/memory_extents.h"

#include <unistd.h>

#include <algorithm>

namespace lockstep {

Extent extent_of(const void* data, std::size_t bytes, const std::vector<Mapping>& mappings) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  const Mapping* const mapping = find_mapping(mappings, address);
  if (mapping == nullptr || !mapping->is_shared)
    return {no_device, static_cast<std::uint64_t>(getpid()), address, bytes};
  return {mapping->device, mapping->inode, mapping->offset + (address - mapping->begin), bytes};
}

std::size_t bytes_of_union(std::vector<Extent> extents) {
  std::sort(extents.begin(), extents.end());
  std::size_t bytes = 0;
  Extent last;  // The last counted extent.
  for (const Extent& extent : extents) {
    const bool follows = extent.device == last.device && extent.inode == last.inode;
    const std::uint64_t counted = follows ? last.begin + last.bytes : 0;
    const std::uint64_t end = extent.begin + extent.bytes;
    if (end <= counted) continue;
    bytes += end - std::max(extent.begin, counted);
    last = extent;
  }
  return bytes;
}

}  // namespace lockstep
