// What the kernel says of this process's memory: /proc/self/smaps and smaps_rollup. Without
// LibTorch.
//
// PSS, the proportional set size, counts each page that is in memory divided by the number of
// processes that have touched it: over all processes it adds up to what they take together.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <istream>
#include <vector>

namespace lockstep {

// A range of addresses, as a line of smaps begins with it, and its PSS.
struct Mapping {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  bool is_shared = false;    // Mapped MAP_SHARED: others may see what is written there.
  std::uint64_t device = 0;  // Of the file, whose inode is 0 when there is none,
  std::uint64_t inode = 0;
  std::uint64_t offset = 0;  // and where in it the range begins.
  std::size_t proportional_bytes = 0;
};

// All mappings of a text in the format of /proc/PID/smaps. Errors: corrupt when it is in none.
std::vector<Mapping> read_smaps(std::istream& smaps);

// The sum of all "Pss:" lines; of /proc/PID/smaps_rollup, which has one, that of the process.
std::size_t read_proportional_bytes(std::istream& rollup);

// Errors: system when /proc cannot be read.
std::vector<Mapping> mappings_of_this_process();
std::size_t proportional_bytes_of_this_process();

// The mapping in which `address` lies; null when there is none.
const Mapping* find_mapping(const std::vector<Mapping>& mappings, std::uintptr_t address);

}  // namespace lockstep
