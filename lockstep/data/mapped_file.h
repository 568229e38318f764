// A file mapped into memory: its pages are the page cache's, one copy for all processes of a host.
// And functions for files that are read.
//
// Thread safety: const members may be called from several threads at once.
// Errors: system, naming the file.
// Lifetime: the file must not become shorter while it is mapped. The kernel ends a process that
// reads a page beyond the end with SIGBUS; require_unchanged() finds a change between two reads.
// No descriptor stays open: a dataset may have more files than a process may open.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>

#include "lockstep/base/file_descriptor.h"

namespace lockstep::data {

// Size and time of last change, which tell whether a file is still the same.
struct FileStamp {
  std::uint64_t size = 0;
  std::int64_t changed_ns = 0;  // Since 1970.

  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

// Opens a file for reading. Errors: system.
FileDescriptor open_to_read(const std::filesystem::path& path);

// `name` is for messages. Errors: system, also if `fd` is no regular file.
struct stat status_of(const FileDescriptor& fd, const std::string& name);
FileStamp stamp_of(const FileDescriptor& fd, const std::string& name);

// Fills `out` with the next bytes of `fd` and returns their number, which is smaller only at the
// file's end. Errors: system.
std::size_t read_next(const FileDescriptor& fd, std::span<std::uint8_t> out,
                      const std::string& name);

// Fills all of `out` from byte `offset` on. Errors: system; corrupt if the file ends too early.
void read_exactly_at(const FileDescriptor& fd, const std::string& name, std::uint64_t offset,
                     std::span<std::byte> out);

class MappedFile {
 public:
  // copy_on_write: this process may write to the pages. It then has copies of its own, and the file
  // stays as it is.
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

  // Errors: corrupt if the file was written to, or replaced, since it was mapped.
  void require_unchanged() const;

 private:
  std::filesystem::path path_;
  FileStamp stamp_;
  std::byte* data_ = nullptr;
};

}  // namespace lockstep::data
