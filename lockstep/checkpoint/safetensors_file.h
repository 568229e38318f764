// A file of safetensors opened for reading; its data can be read in parts of any size.
//
// Torch-free. Thread safety: read() may be called from any thread at once.
// Errors: corrupt, naming file and tensor, before memory of a claimed size is allocated; system if
// the file cannot be read; unsupported for element types that safetensors_header.h lacks.

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
  // Expected contents of the file, from the manifest of its checkpoint.
  struct Expected {
    std::uint64_t bytes = 0;
    std::uint32_t header_crc32c = 0;
  };

  explicit SafetensorsFile(const std::filesystem::path& path);

  // `fd` is the open file, of any kind; `name` is for messages.
  SafetensorsFile(std::string name, FileDescriptor fd, const std::optional<Expected>& expected);

  const std::string& name() const { return name_; }
  std::uint64_t size() const { return size_; }
  const SafetensorsHeader& header() const { return header_; }

  // Reads bytes [begin, begin + out.size()) of the data of `entry`. Returns `crc` extended by them
  // (CRC-32C).
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
