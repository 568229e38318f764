// A file of safetensors that is open for reading, and its data, in parts of any size.
//
// Torch-free. Thread safety: read() may be called from any thread at once.
// Errors: corrupt, naming file and tensor, before anything of a claimed size is allocated; system
// when the file cannot be read; unsupported for other types of elements than safetensors_header.h
// has.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "lockstep/base/api.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/checkpoint/safetensors_header.h"

namespace lockstep {

class LOCKSTEP_API SafetensorsFile {
 public:
  // What a file is known to be, by the manifest that goes with it.
  struct Expected {
    std::uint64_t bytes = 0;
    std::uint32_t header_crc32c = 0;
  };

  explicit SafetensorsFile(const std::filesystem::path& path);

  // `fd` is that of the file, whatever it is; `name` is for messages.
  SafetensorsFile(std::string name, FileDescriptor fd, const std::optional<Expected>& expected);

  const std::string& name() const { return name_; }
  std::uint64_t size() const { return size_; }
  const SafetensorsHeader& header() const { return header_; }

  // Bytes [begin, begin + out.size()) of the data of `entry`. Returns their CRC-32C, after `crc`.
  std::uint32_t read(const SafetensorsEntry& entry, std::uint64_t begin, std::span<std::byte> out,
                     std::uint32_t crc = 0) const;

 private:
  void read_header(const std::optional<Expected>& expected);
  void read_at(std::uint64_t offset, std::span<std::byte> out) const;

  const std::string name_;
  const FileDescriptor fd_;
  std::uint64_t size_ = 0;
  std::uint64_t data_offset_ = 0;
  SafetensorsHeader header_;
};

}  // namespace lockstep
