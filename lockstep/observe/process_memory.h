// This process's memory, from /proc/self/smaps and smaps_rollup.
//
// PSS (proportional set size): see memory_report.h.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <istream>
#include <vector>

namespace lockstep::observe {

// An entry in smaps.
struct Mapping {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  bool is_shared = false;    // MAP_SHARED.
  std::uint64_t device = 0;  // The file's device; the inode is 0 without a file.
  std::uint64_t inode = 0;
  std::uint64_t offset = 0;  // In the file.
  std::size_t proportional_bytes = 0;
};

// Errors: corrupt for another format.
std::vector<Mapping> read_smaps(std::istream& smaps);

std::size_t read_proportional_bytes(std::istream& rollup);

// Errors: system if /proc cannot be read.
std::vector<Mapping> mappings_of_this_process();
std::size_t proportional_bytes_of_this_process();

// Null if no mapping contains `address`.
const Mapping* find_mapping(const std::vector<Mapping>& mappings, std::uintptr_t address);

// A range of bytes in a file mapped MAP_SHARED, otherwise at an address of one process. Shared
// memory thus has equal extents in all processes of a host.
struct Extent {
  // As in Mapping; for an address, no_device and the process id.
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;

  auto operator<=>(const Extent&) const = default;
};

inline constexpr std::uint64_t no_device = ~std::uint64_t{0};

Extent extent_of(const void* data, std::size_t bytes, const std::vector<Mapping>& mappings);

// Overlaps count once.
std::size_t bytes_of_union(std::vector<Extent> extents);

}  // namespace lockstep::observe
