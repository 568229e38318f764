// Files of a saved checkpoint.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <lockstep/base/file_descriptor.h>

#include <cstdint>
#include <filesystem>

inline std::uint64_t bytes_in(const std::filesystem::path& folder) {
  std::uint64_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) bytes += entry.file_size();
  return bytes;
}

// Drops cached pages, so that the next reader waits for the disk. Keeps pages that are not on the
// disk.
inline void drop_cached(const std::filesystem::path& folder) {
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const lockstep::FileDescriptor fd(::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC));
    ::posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED);
  }
}
