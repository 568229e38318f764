// A file of samples, plain or packed by gzip, read from its beginning to its end.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <zlib.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/data/corrupt_file.h"

namespace lockstep::data {

// Guards against claimed sizes: a sparse file may have any size, and the kernel promises more
// memory than it has.
// Errors: system, with both numbers, if `bytes` of a dataset are more than this process may still
// allocate. `file` is the dataset's first file.
void require_memory_for(std::string_view file, std::uint64_t bytes);

// Errors: system, with the file's name, if it cannot be opened or read.
class InputFile {
 public:
  // `path` must be a regular file: only its size can be compared with the sizes that a header
  // claims.
  explicit InputFile(std::filesystem::path path);

  const std::string& name() const { return path_.native(); }
  std::uint64_t size() const { return size_; }  // At the time it was opened.

  // Fills `out` from the file and returns the number of bytes, which is smaller only at the file's
  // end.
  std::size_t read(std::span<std::uint8_t> out);

  void seek(std::uint64_t offset);

 private:
  std::filesystem::path path_;
  FileDescriptor fd_;
  std::uint64_t size_;
};

// Whether the file starts with gzip's magic number. Rewinds the file to its beginning.
bool is_gzip(InputFile& file);

// A gzip file of one member, unpacked while it is read.
// Errors: those of InputFile; corrupt if the packed bytes are no valid gzip.
class GzipFile {
 public:
  explicit GzipFile(InputFile file);
  ~GzipFile();
  GzipFile(const GzipFile&) = delete;
  GzipFile& operator=(const GzipFile&) = delete;

  // For messages, whose offsets into this file count unpacked bytes.
  const std::string& name() const { return name_; }

  // The unpacked size modulo 2^32, from the trailer.
  std::uint32_t stated_size() const { return stated_size_; }

  // Whether the file can hold `size` unpacked bytes: the trailer agrees, and deflate can pack that
  // many bytes into a file of this size.
  bool can_hold(std::uint64_t size) const;

  // Fills `out` with unpacked bytes and returns their number. The number is smaller than `out` only
  // at the end, after the checksum was verified and no data follows.
  std::size_t read(std::span<std::uint8_t> out);

 private:
  void refill();
  [[noreturn]] void fail(std::string_view expected, std::string_view found) const;

  InputFile file_;
  std::string name_;
  std::uint32_t stated_size_ = 0;
  bool ended_ = false;
  z_stream stream_ = {};  // Holds pointers to itself, so it must not move.
  std::array<std::uint8_t, 1 << 16> packed_;
};

}  // namespace lockstep::data
