// The kernel's data about this process's memory, from /proc/self/smaps and smaps_rollup, and the
// positions of tensors in it. Needs no LibTorch.
//
// PSS, the proportional set size, divides each resident page by the number of processes that have
// accessed it. The PSS of all processes adds up to their total memory.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <istream>
#include <vector>

namespace lockstep::observe {

// A range of addresses, from the first line of an entry in smaps, and its PSS.
struct Mapping {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  bool is_shared = false;    // Mapped MAP_SHARED: other processes may see writes.
  std::uint64_t device = 0;  // The file's device; the inode is 0 without a file.
  std::uint64_t inode = 0;
  std::uint64_t offset = 0;  // Offset of the range in the file.
  std::size_t proportional_bytes = 0;
};

// All mappings in a text in the format of /proc/PID/smaps. Errors: corrupt for another format.
std::vector<Mapping> read_smaps(std::istream& smaps);

// The sum of all "Pss:" lines. /proc/PID/smaps_rollup has one such line, for the whole process.
std::size_t read_proportional_bytes(std::istream& rollup);

// Errors: system if /proc cannot be read.
std::vector<Mapping> mappings_of_this_process();
std::size_t proportional_bytes_of_this_process();

// Returns the mapping that contains `address`; null if there is none.
const Mapping* find_mapping(const std::vector<Mapping>& mappings, std::uintptr_t address);

// A range of bytes in a file that is mapped MAP_SHARED, otherwise at an address of one process. All
// processes of a host have the same extents for shared memory, so memory of several tensors or
// ranks counts once.
struct Extent {
  // The file's device, as in Mapping; for an address, no_device and the process id.
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;

  auto operator<=>(const Extent&) const = default;
};

inline constexpr std::uint64_t no_device = ~std::uint64_t{0};

// The extent of `bytes` bytes at `data` in this process, which has these `mappings`.
Extent extent_of(const void* data, std::size_t bytes, const std::vector<Mapping>& mappings);

// Total bytes of all extents; overlaps count once.
std::size_t bytes_of_union(std::vector<Extent> extents);

}  // namespace lockstep::observe
