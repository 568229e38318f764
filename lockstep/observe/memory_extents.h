// Positions of tensors in terms that all processes of a host share, so that memory used by several
// tensors or ranks counts once.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/observe/process_memory.h"

namespace lockstep {

// A range of bytes in a file that is mapped MAP_SHARED, or else at an address of one process.
struct Extent {
  // The file's device, as in Mapping; for an address, no_device and the process's id.
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;

  auto operator<=>(const Extent&) const = default;
};

inline constexpr std::uint64_t no_device = ~std::uint64_t{0};

// The extent of `bytes` bytes at `data` in this process, whose mappings are `mappings`.
Extent extent_of(const void* data, std::size_t bytes, const std::vector<Mapping>& mappings);

// Total bytes of all extents; overlaps count once.
std::size_t bytes_of_union(std::vector<Extent> extents);

}  // namespace lockstep
