// A file that is written from its beginning to its end, and then forced to the disk.
//
// Errors: system, naming the file, such as "No space left on device", and the limit for a file
// beyond RLIMIT_FSIZE, whose signal does not end the process.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "lockstep/base/file_descriptor.h"

namespace lockstep {

class OutputFile {
 public:
  // Makes the file, which must not be there. `name` is what messages call it; its path if empty.
  explicit OutputFile(const std::filesystem::path& path, std::string name = {});

  // Takes `size` bytes of the disk where the file system can, so that a full one is noticed at
  // once.
  void reserve(std::uint64_t size);

  // After what was written before.
  void write(std::span<const std::byte> bytes);

  // Returns when the file would outlast a power failure. An error is final: the kernel may have
  // dropped what it could not write, so trying again would prove nothing.
  void sync();

  std::uint64_t size() const { return size_; }

 private:
  void start_writing_back();
  [[noreturn]] void fail() const;

  std::string name_;
  FileDescriptor fd_;
  std::uint64_t size_ = 0;     // Written.
  std::uint64_t started_ = 0;  // Of these, on their way to the disk.
};

// A name in a directory outlasts a power failure only once the directory is on the disk, too.
void sync_directory(const std::filesystem::path& directory);

}  // namespace lockstep
