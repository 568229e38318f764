// Memory that several processes of one host map, without a name in any file system.
//
// It is a memfd, so /dev/shm may be full, read-only or absent. create() reserves all its pages and
// then seals its size, so access never raises SIGBUS.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "lockstep/base/api.h"
#include "lockstep/base/file_descriptor.h"

namespace lockstep {

class LOCKSTEP_API SharedMapping {
 public:
  // Creates zero-filled memory; `bytes` is rounded up to whole pages. `purpose` shows in
  // /proc/PID/maps. Errors: system, with the numbers, when the host or its memory cgroup has less
  // left. Also when the limit of file sizes (`ulimit -f`) is lower: it applies to memfds too.
  static SharedMapping create(std::string_view purpose, std::size_t bytes);

  // Maps all of a mapping that another process created and sent. Errors: corrupt when it is not
  // sealed.
  static SharedMapping attach(FileDescriptor fd);

  SharedMapping(SharedMapping&& other) noexcept;
  SharedMapping& operator=(SharedMapping&&) = delete;
  ~SharedMapping();

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

  // The descriptor to send to other processes; open until close_descriptor().
  int descriptor() const { return fd_.get(); }

  // The mapping stays valid, and so do descriptors already sent.
  void close_descriptor() { fd_ = FileDescriptor(); }

 private:
  explicit SharedMapping(FileDescriptor fd);

  FileDescriptor fd_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// Maps all pages at once. Cheaper than mapping each on first access, if all of them will be used.
LOCKSTEP_API void map_all_pages(std::byte* data, std::size_t bytes);

// Bytes that this process may still allocate: the least of the kernel's "available" and the rest
// that each memory cgroup above this process has.
LOCKSTEP_API std::size_t available_memory();

// The lowest limit of those memory cgroups; empty when none has a limit.
LOCKSTEP_API std::optional<std::size_t> memory_limit();

}  // namespace lockstep
