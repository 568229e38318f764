// A file that gets its name only when it is complete. Until then, an existing file of that name
// stays unchanged.
//
// Errors: system, naming the file, for example "No space left on device", and if the name is that
// of a device, a FIFO or a folder. Nothing is left of a file that was not committed. Only a killed
// process leaves NAME.tmp-PID-N.

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
  // Reserves `size` bytes if the file system can, so that a full disk is reported at once.
  AtomicFile(const std::filesystem::path& target, std::uint64_t size);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes) { file_->write(bytes); }

  // Returns when the file would survive a power failure. No other call may follow.
  void commit();

 private:
  void open_aside();
  void remove_aside();

  const std::filesystem::path target_;
  std::filesystem::path aside_;  // Empty if there is no such file to remove.
  std::optional<OutputFile> file_;
};

}  // namespace lockstep
