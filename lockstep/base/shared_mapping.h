// Memory that several processes of one host have mapped, without a name in any file system.
//
// It is a memfd, so /dev/shm may be full, read-only or absent. All of its pages are reserved
// when it is made and its size is then sealed: touching it never raises SIGBUS.

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
  // Zero-filled, `bytes` rounded up to whole pages. `purpose` shows in /proc/PID/maps.
  // Errors: system, with the numbers, when the host or its memory cgroup has less to give, or the
  // limit of file sizes (`ulimit -f`), which holds for memfds too, is less.
  static SharedMapping create(std::string_view purpose, std::size_t bytes);

  // Maps all of what another process made and sent. Errors: corrupt when it is not sealed.
  static SharedMapping attach(FileDescriptor fd);

  SharedMapping(SharedMapping&& other) noexcept;
  SharedMapping& operator=(SharedMapping&&) = delete;
  ~SharedMapping();

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

  // What to send to the other processes; open until close_descriptor().
  int descriptor() const { return fd_.get(); }

  // The mapping lives on without it, as do descriptors that were sent.
  void close_descriptor() { fd_ = FileDescriptor(); }

 private:
  explicit SharedMapping(FileDescriptor fd);

  FileDescriptor fd_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// Maps all pages of such memory at once, which costs less than each at its first touch, if all of
// them are going to be touched.
LOCKSTEP_API void map_all_pages(std::byte* data, std::size_t bytes);

// Bytes that this process may still take: the least of what the kernel calls available and of
// what each memory cgroup above this process leaves.
LOCKSTEP_API std::size_t available_memory();

// The least of what those memory cgroups may take together; empty when none has a limit.
LOCKSTEP_API std::optional<std::size_t> memory_limit();

}  // namespace lockstep
