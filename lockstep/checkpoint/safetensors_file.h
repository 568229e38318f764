// Reads parts of tensors in safetensors files, and writes such files one tensor at a time.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/base/file_descriptor.h"
#include "lockstep/checkpoint/safetensors_header.h"
#include "lockstep/tensor/named_tensors.h"

namespace lockstep {

// Errors: unsupported, naming `file` and the tensor, for SafetensorsType::OTHER.
LOCKSTEP_API at::ScalarType scalar_type_of(const SafetensorsEntry& entry,
                                           const std::string& file = "safetensors");
LOCKSTEP_API std::optional<at::ScalarType> find_scalar_type(SafetensorsType type);

// Without begin and end. Errors: misuse, with the name, for an undefined tensor; unsupported for a
// tensor that is not dense or whose type the format lacks.
SafetensorsEntry entry_for(const std::string& name, const at::Tensor& tensor);

inline constexpr std::string_view pickle_remedy =
    "Lockstep does not read pickles of Python: load them in Python and write them with "
    "save_pretrained() or safetensors.torch.save_file()";

// A file opened for reading.
// Thread safety: several threads may call read() at once.
// Errors: corrupt, naming the file and, if known, the tensor, before allocating a claimed size.
// System if it cannot be read. Without Expected, misuse for another known format, such as a pickle.
class LOCKSTEP_API SafetensorsFile {
 public:
  // From the manifest of its checkpoint.
  struct Expected {
    std::uint64_t bytes = 0;
    std::uint32_t header_crc32c = 0;
  };

  explicit SafetensorsFile(const std::filesystem::path& path);

  // `name` is for messages.
  SafetensorsFile(std::string name, FileDescriptor fd, const std::optional<Expected>& expected);

  const std::string& name() const { return name_; }
  std::uint64_t size() const { return size_; }
  const SafetensorsHeader& header() const { return header_; }

  // Reads bytes [begin, begin + out.size()) of an entry's data. Returns `crc` (CRC-32C) extended by
  // them.
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

// Writes a file with one tensor at a time in memory.
//
//   lockstep::SafetensorsWriter out(file, tensors);  // Reads only types and shapes.
//   for (const std::string& name : out.order()) out.write(read(name));
//   out.commit();                                    // Replaces an existing file.
//
// Errors: as save_safetensors(); misuse for another type or shape than the next tensor's.
class LOCKSTEP_API SafetensorsWriter {
 public:
  SafetensorsWriter(const std::filesystem::path& file, const NamedTensors& tensors,
                    const std::map<std::string, std::string>& metadata = {});
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // In file order.
  const std::vector<std::string>& order() const;

  void write(const at::Tensor& tensor);

  // All tensors must be written; no other call may follow.
  void commit();

 private:
  struct State;
  const std::unique_ptr<State> state_;
};

}  // namespace lockstep
