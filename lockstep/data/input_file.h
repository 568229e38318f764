// A file of samples that is read from its beginning to its end.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <source_location>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/base/file_descriptor.h"

namespace lockstep {

// Fault::corrupt, such as "train-labels-idx1-ubyte: byte 3: expected 1 to 8 dimensions, found 9".
[[noreturn]] void throw_corrupt(std::string_view file, std::uint64_t offset,
                                std::string_view expected, std::string_view found,
                                std::source_location where = std::source_location::current());

// A sparse file may have any size, and the kernel promises memory that it does not have.
// Errors: system, with both numbers, when `bytes` of a dataset are more than this process may still
// take. `file` is its first file.
void require_memory_for(std::string_view file, std::uint64_t bytes);

// Errors: system, with the file's name, when it cannot be opened or read.
class InputFile {
 public:
  // It must be a regular file: only these have a size that claims can be measured against.
  explicit InputFile(std::filesystem::path path);

  const std::string& name() const { return path_.native(); }
  std::uint64_t size() const { return size_; }  // When it was opened.

  // Fills `out` from the file; returns how much, which is less only at the file's end.
  std::size_t read(std::span<std::uint8_t> out);

  void seek(std::uint64_t offset);

 private:
  std::filesystem::path path_;
  FileDescriptor fd_;
  std::uint64_t size_ = 0;
};

}  // namespace lockstep
