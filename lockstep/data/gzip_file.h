// A gzip file of one member, unpacked while it is read.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <zlib.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "lockstep/data/input_file.h"

namespace lockstep {

// Whether the file starts with gzip's magic number. Rewinds the file to its beginning.
bool is_gzip(InputFile& file);

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

}  // namespace lockstep
