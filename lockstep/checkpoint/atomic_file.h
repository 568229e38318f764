// A file that appears under its name when it is whole, and not before: until then, whatever had the
// name stays as it is.
//
// Errors: system, naming the file, such as "No space left on device", and when the name is that of
// a device, a FIFO or a folder. Where it lies, nothing is left
// of a file that was not committed, unless the process was killed: then NAME.tmp-PID-N is.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>

#include "lockstep/checkpoint/output_file.h"

namespace lockstep {

class AtomicFile {
 public:
  // Reserves `size` bytes where the file system can, so that a full disk is noticed at once.
  AtomicFile(const std::filesystem::path& target, std::uint64_t size);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes) { file_->write(bytes); }

  // Returns when the file would outlast a power failure. The last call on the object.
  void commit();

 private:
  void open_aside();
  void remove_aside();

  const std::filesystem::path target_;
  std::filesystem::path aside_;  // Empty while there is no such file to remove.
  std::optional<OutputFile> file_;
};

}  // namespace lockstep
