// SPDX-License-Identifier: Apache-2.0
#include "lockstep/observe/process_memory.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"

namespace lockstep::observe {
namespace {

constexpr std::string_view pss = "Pss:";

std::size_t bytes_of(const std::string& line, std::string_view key) {
  return std::stoull(line.substr(key.size())) << 10;  // Sizes are in KiB.
}

// As "7f0e00000000-7f0e00200000 rw-s 00000000 00:01 1042 /memfd:region (deleted)". Other lines,
// such as "Pss: 4 kB", have a colon before their first space.
bool begins_mapping(const std::string& line) {
  const std::size_t end = line.find(' ');
  return end != std::string::npos && line.find(':') > end;
}

Mapping mapping_of(const std::string& line) {
  std::istringstream words(line);
  Mapping mapping;
  char dash = 0;
  char colon = 0;
  std::string permissions;
  std::uint64_t major = 0;
  std::uint64_t minor = 0;
  words >> std::hex >> mapping.begin >> dash >> mapping.end >> permissions >> mapping.offset >>
      major >> colon >> minor >> std::dec >> mapping.inode;
  if (!words || dash != '-' || colon != ':' || permissions.size() != 4)
    throw Error(Fault::corrupt, "smaps: expected a mapping, found: " + line);
  mapping.is_shared = permissions[3] == 's';
  mapping.device = major << 32 | minor;
  return mapping;
}

std::ifstream open(const char* path) {
  std::ifstream file(path);
  if (!file) throw Error(Fault::system, std::string("cannot read ") + path);
  return file;
}

}  // namespace

std::vector<Mapping> read_smaps(std::istream& smaps) {
  std::vector<Mapping> mappings;
  for (std::string line; std::getline(smaps, line);) {
    if (begins_mapping(line))
      mappings.push_back(mapping_of(line));
    else if (line.starts_with(pss) && !mappings.empty())
      mappings.back().proportional_bytes = bytes_of(line, pss);
  }
  return mappings;
}

std::size_t read_proportional_bytes(std::istream& rollup) {
  std::size_t bytes = 0;
  for (std::string line; std::getline(rollup, line);)
    if (line.starts_with(pss)) bytes += bytes_of(line, pss);
  return bytes;
}

std::vector<Mapping> mappings_of_this_process() {
  std::ifstream smaps = open("/proc/self/smaps");
  return read_smaps(smaps);
}

std::size_t proportional_bytes_of_this_process() {
  std::ifstream rollup = open("/proc/self/smaps_rollup");
  return read_proportional_bytes(rollup);
}

const Mapping* find_mapping(const std::vector<Mapping>& mappings, std::uintptr_t address) {
  const auto found = std::find_if(mappings.begin(), mappings.end(), [&](const Mapping& each) {
    return each.begin <= address && address < each.end;
  });
  return found == mappings.end() ? nullptr : &*found;
}

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
  Extent last;
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

}  // namespace lockstep::observe
