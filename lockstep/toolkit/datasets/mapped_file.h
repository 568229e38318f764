// A file mapped into memory, so that all processes of a host share the page cache.
//
// Thread safety: const members may be called concurrently.
// Errors: system.
// Lifetime: do not truncate the file while it is mapped: reads beyond the end raise SIGBUS. No
// descriptor stays open: a dataset may have more files than a process may have descriptors.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "lockstep/base/file_descriptor.h"

namespace lockstep::datasets {

// Detects a changed file.
struct FileStamp {
  std::uint64_t size = 0;
  std::int64_t changed_ns = 0;  // Modification time since 1970.

  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

FileDescriptor open_to_read(const std::filesystem::path& path);

// `name` is for messages. Errors: also if `fd` is no regular file.
struct stat status_of(const FileDescriptor& fd, const std::string& name);
FileStamp stamp_of(const FileDescriptor& fd, const std::string& name);

// Returns the number of bytes read: fewer than out.size() only at the end of the file.
std::size_t read_next(const FileDescriptor& fd, std::span<std::uint8_t> out,
                      const std::string& name);

// Fills `out` from byte `offset` on. Errors: also corrupt if the file ends early.
void read_exactly_at(const FileDescriptor& fd, const std::string& name, std::uint64_t offset,
                     std::span<std::byte> out);

class MappedFile {
 public:
  // copy_on_write: pages that this process writes become private.
  enum class Pages { read_only, copy_on_write };

  explicit MappedFile(std::filesystem::path path, Pages pages = Pages::read_only);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;
  ~MappedFile();

  const std::string& name() const { return path_.native(); }
  std::uint64_t size() const { return stamp_.size; }
  std::byte* data() const { return data_; }  // Page-aligned; nullptr if the file is empty.
  std::span<const std::byte> bytes() const { return {data_, size()}; }
  const FileStamp& stamp() const { return stamp_; }

  // Errors: corrupt if the file was modified or replaced since it was mapped.
  void require_unchanged() const;

 private:
  std::filesystem::path path_;
  FileStamp stamp_;
  std::byte* data_ = nullptr;
};

}  // namespace lockstep::datasets
