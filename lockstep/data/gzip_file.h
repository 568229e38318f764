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

// Whether the file starts as gzip files do. Leaves the file at its beginning.
bool is_gzip(InputFile& file);

// Errors: those of InputFile; corrupt where the packed bytes are not what gzip writes.
class GzipFile {
 public:
  explicit GzipFile(InputFile file);
  ~GzipFile();
  GzipFile(const GzipFile&) = delete;
  GzipFile& operator=(const GzipFile&) = delete;

  // For messages: what read() gives is counted in unpacked bytes.
  const std::string& name() const { return name_; }

  // What the trailer says of the unpacked size, modulo 2^32.
  std::uint32_t stated_size() const { return stated_size_; }

  // Whether `size` unpacked bytes can be in here: the trailer says so, and it is no more than
  // deflate can pack into as many bytes as the file has.
  bool can_hold(std::uint64_t size) const;

  // Fills `out` with unpacked bytes; returns how many, which is less only at the end, where the
  // checksum was compared and nothing follows.
  std::size_t read(std::span<std::uint8_t> out);

 private:
  void refill();
  [[noreturn]] void fail(std::string_view expected, std::string_view found) const;

  InputFile file_;
  std::string name_;
  std::uint32_t stated_size_ = 0;
  bool ended_ = false;
  z_stream stream_ = {};  // Holds pointers to itself: it must not move.
  std::array<std::uint8_t, 1 << 16> packed_;
};

}  // namespace lockstep
