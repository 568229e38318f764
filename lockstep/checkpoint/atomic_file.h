// A file that appears under its name when it is whole, and not before: until then, whatever had the
// name stays as it is.
//
// Errors: system, naming the file, such as "No space left on device". Where it lies, nothing is left
// of a file that was not committed, unless the process was killed: then NAME.tmp-PID-N is.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>

#include "lockstep/comm/host/file_descriptor.h"

namespace lockstep {

class AtomicFile {
 public:
  // Reserves `size` bytes where the file system can, so that a full disk is noticed at once.
  AtomicFile(std::filesystem::path target, std::uint64_t size);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes);

  // Returns when the file would outlast a power failure. The last call on the object.
  void commit();

 private:
  void open_aside();
  void reserve(std::uint64_t size);
  [[noreturn]] void fail() const;

  std::filesystem::path target_;
  std::filesystem::path aside_;  // Empty once there is no such file to remove.
  FileDescriptor fd_;
};

}  // namespace lockstep
