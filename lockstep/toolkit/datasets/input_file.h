// Sequential reader of sample files, plain or compressed by gzip.

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
#include "lockstep/toolkit/datasets/corrupt_file.h"

namespace lockstep::datasets {

// A sparse file may claim any size, and the kernel overcommits memory.
// `file` is for messages.
// Errors: system, with the available memory, if that is less than `bytes`.
void require_memory_for(std::string_view file, std::uint64_t bytes);

// Errors: system.
class InputFile {
 public:
  // The file must be regular: readers compare its size with those in its header.
  explicit InputFile(std::filesystem::path path);

  const std::string& name() const { return path_.native(); }
  std::uint64_t size() const { return size_; }  // When the file was opened.

  // Returns the number of bytes read: fewer than out.size() only at the end of the file.
  std::size_t read(std::span<std::uint8_t> out);

  void seek(std::uint64_t offset);

 private:
  std::filesystem::path path_;
  FileDescriptor fd_;
  std::uint64_t size_;
};

// Whether the file starts with gzip's magic number. Rewinds it.
bool is_gzip(InputFile& file);

// A gzip file with one member. Errors: those of InputFile; corrupt for invalid gzip.
class GzipFile {
 public:
  explicit GzipFile(InputFile file);
  ~GzipFile();
  GzipFile(const GzipFile&) = delete;
  GzipFile& operator=(const GzipFile&) = delete;

  // For messages; their offsets count decompressed bytes.
  const std::string& name() const { return name_; }

  // The decompressed size modulo 2^32, from the trailer.
  std::uint32_t stated_size() const { return stated_size_; }

  // Whether trailer and deflate's highest ratio allow `size` decompressed bytes.
  bool can_hold(std::uint64_t size) const;

  // Returns the number of decompressed bytes: fewer than out.size() only at the end, where the
  // checksum is verified and data behind it is an Error.
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

}  // namespace lockstep::datasets
