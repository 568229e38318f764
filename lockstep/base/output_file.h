// Files that are written once, sequentially, and can be synced.
//
// Errors: system, naming the file. Beyond RLIMIT_FSIZE the message has the limit; SIGXFSZ does not
// end the process.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/base/api.h"
#include "lockstep/base/file_descriptor.h"

namespace lockstep {

class LOCKSTEP_API OutputFile {
 public:
  // Creates the file, which must not exist. Messages use `name`, or the path if empty.
  explicit OutputFile(const std::filesystem::path& path, std::string name = {});

  // Allocates `size` bytes, if the file system can, to report a full disk early.
  void reserve(std::uint64_t size);

  void write(std::span<const std::byte> bytes);

  // Returns when the data would survive a power failure. An error is final: the kernel may have
  // dropped the data, so a retry could succeed without writing it.
  void sync();

  std::uint64_t size() const { return size_; }

 private:
  void start_writing_back();
  [[noreturn]] void fail(std::string_view action) const;

  std::string name_;
  FileDescriptor fd_;
  std::uint64_t size_ = 0;
  std::uint64_t started_ = 0;
};

// A file that gets its final name, and replaces an existing file, when it is complete. Errors: also
// system if `target` is a device, a FIFO or a folder. The destructor removes an uncommitted file. A
// killed process leaves NAME.tmp-HOST-PID-N, where HOST identifies host and container.
class LOCKSTEP_API AtomicFile {
 public:
  // Reserves `size` bytes.
  AtomicFile(const std::filesystem::path& target, std::uint64_t size);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(std::span<const std::byte> bytes) { file_->write(bytes); }

  // Returns when the file would survive a power failure. No other call may follow.
  void commit();

  // As commit(), but a power failure may lose or damage the file.
  void commit_unsynced();

 private:
  void open_aside();
  void remove_aside();

  const std::filesystem::path target_;
  std::filesystem::path aside_;  // Empty if there is no temporary file to remove.
  std::optional<OutputFile> file_;
};

// Removes each NAME.tmp-HOST-PID-N in `directory` that begins with `prefix` and whose process, on
// this host and container, has ended.
LOCKSTEP_API void remove_unfinished(const std::filesystem::path& directory,
                                    std::string_view prefix);

// Without this, a new name in the directory may not survive a power failure.
LOCKSTEP_API void sync_directory(const std::filesystem::path& directory);

// Returns errno instead of throwing; 0 also if the file system cannot sync directories.
LOCKSTEP_API int try_to_sync_directory(const std::filesystem::path& directory);

}  // namespace lockstep
