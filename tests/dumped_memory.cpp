// SPDX-License-Identifier: Apache-2.0
#include "tests/dumped_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <sstream>

#include "lockstep/base/file_descriptor.h"

namespace lockstep::test {
namespace {

struct Mapping {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
  bool is_writable = false;
  bool is_dumped = true;
  std::string name;  // Line of /proc/self/smaps.
};

std::vector<Mapping> mappings() {
  std::vector<Mapping> all;
  std::ifstream smaps("/proc/self/smaps");
  for (std::string line; std::getline(smaps, line);) {
    Mapping mapping{.name = line};
    char dash = 0;
    std::string permissions;
    std::istringstream fields(line);
    if (fields >> std::hex >> mapping.begin >> dash >> mapping.end >> permissions && dash == '-') {
      mapping.is_writable = permissions.starts_with("rw");
      all.push_back(mapping);
    } else if (line.starts_with("VmFlags:") && (line + ' ').find(" dd ") != line.npos) {
      all.back().is_dumped = false;
    }
  }
  return all;
}

// Reads block by block, because other threads may unmap memory. Blocks overlap by the text's
// length.
bool holds(int memory, const Mapping& mapping, std::string_view reversed_text) {
  std::vector<char> block(std::size_t{1} << 20);
  for (std::uintptr_t at = mapping.begin; at < mapping.end;) {
    const std::size_t wanted = std::min<std::size_t>(block.size(), mapping.end - at);
    const ssize_t read = ::pread(memory, block.data(), wanted, static_cast<off_t>(at));
    if (read < static_cast<ssize_t>(reversed_text.size())) return false;
    const auto end = block.begin() + read;
    const auto found =
        std::search(block.begin(), end, reversed_text.rbegin(), reversed_text.rend());
    if (found != end) return true;
    at += static_cast<std::size_t>(read) - reversed_text.size() + 1;
  }
  return false;
}

}  // namespace

std::vector<std::string> dumped_mappings_with(std::string_view reversed_text) {
  // Larger mappings belong to a sanitizer.
  constexpr std::uintptr_t most = std::uintptr_t{1} << 30;
  const FileDescriptor memory(::open("/proc/self/mem", O_RDONLY | O_CLOEXEC));
  std::vector<std::string> found;
  for (const Mapping& mapping : mappings())
    if (mapping.is_writable && mapping.is_dumped && mapping.end - mapping.begin < most &&
        holds(memory.get(), mapping, reversed_text))
      found.push_back(mapping.name);
  return found;
}

}  // namespace lockstep::test
