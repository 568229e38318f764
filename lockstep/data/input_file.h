// Sequential reader of sample files, compressed by gzip or not.

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

// Guards against claimed sizes: a sparse file may have any size, and the kernel overcommits memory.
// `file` is the dataset's first file.
// Errors: system, with both numbers, if `bytes` exceed the memory that this process may allocate.
void require_memory_for(std::string_view file, std::uint64_t bytes);

// Errors: system, with the file's name.
class InputFile {
 public:
  // `path` must be a regular file: its size is compared with the sizes in a header.
  explicit InputFile(std::filesystem::path path);

  const std::string& name() const { return path_.native(); }
  std::uint64_t size() const { return size_; }  // When the file was opened.

  // Fills `out` and returns the number of bytes: fewer than out.size() only at the end of the file.
  std::size_t read(std::span<std::uint8_t> out);

  void seek(std::uint64_t offset);

 private:
  std::filesystem::path path_;
  FileDescriptor fd_;
  std::uint64_t size_;
};

// Whether the file starts with gzip's magic number. Rewinds the file.
bool is_gzip(InputFile& file);

// A gzip file with one member. Errors: those of InputFile; corrupt for invalid gzip.
class GzipFile {
 public:
  explicit GzipFile(InputFile file);
  ~GzipFile();
  GzipFile(const GzipFile&) = delete;
  GzipFile& operator=(const GzipFile&) = delete;

  // For messages. Their offsets into this file count decompressed bytes.
  const std::string& name() const { return name_; }

  // The decompressed size modulo 2^32, from the trailer.
  std::uint32_t stated_size() const { return stated_size_; }

  // Whether the file can contain `size` decompressed bytes, by trailer and deflate's highest ratio.
  bool can_hold(std::uint64_t size) const;

  // Returns the number of decompressed bytes. It is smaller than out.size() only at the end, when
  // the checksum is verified and no data follows.
  std::size_t read(std::span<std::uint8_t> out);

 private:
  void refill();
  [[noreturn]] void fail(std::string_view expected, std::string_view found) const;

  InputFile file_;
  std::string name_;
  std::uint32_t stated_size_ = 0;
  bool ended_ = false;
  z_stream stream_ = {};  // Contains pointers to itself, so it must not move.
  std::array<std::uint8_t, 1 << 16> packed_;
};

}  // namespace lockstep::data
