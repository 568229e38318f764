// Memory mappings and futexes shared by processes of one host, and this process's memory limits.
//
// Thread safety: any thread may call any function; the owner of a SharedMapping synchronizes it.
// Blocking: futex_wait() only.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

#include "lockstep/base/api.h"
#include "lockstep/base/file_descriptor.h"

namespace lockstep {

inline constexpr std::size_t cache_line = 64;

constexpr std::size_t padded(std::size_t bytes) {
  return (bytes + cache_line - 1) / cache_line * cache_line;
}

// Page size in bytes: 4096 on x86-64, up to 65536 on AArch64.
LOCKSTEP_API std::size_t page_size();

// Rounds up to whole pages, at least one.
LOCKSTEP_API std::size_t whole_pages(std::size_t bytes);

// Memory that several processes map: a memfd of sealed size, which needs no /dev/shm. Access to
// reserved pages never raises SIGBUS.
class LOCKSTEP_API SharedMapping {
 public:
  // Creates zero-filled memory of whole pages. `purpose` appears in /proc/PID/maps. Errors: system,
  // with the numbers, when the host or its memory cgroup has less memory left, or `ulimit -f` is
  // lower (it limits memfds too).
  static SharedMapping create(std::string_view purpose, std::size_t bytes) {
    return create(purpose, bytes, bytes);
  }

  // As above, but reserves only the pages of the first `reserved` bytes, more than 0. Call
  // reserve_pages() before using the others.
  static SharedMapping create(std::string_view purpose, std::size_t bytes, std::size_t reserved);

  // Maps all of another process's mapping. Errors: corrupt when it is not sealed.
  static SharedMapping attach(FileDescriptor fd);

  SharedMapping(SharedMapping&& other) noexcept;
  SharedMapping& operator=(SharedMapping&&) = delete;
  ~SharedMapping();

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

  // The descriptor to send to other processes; open until close_descriptor().
  int descriptor() const { return fd_.get(); }

  // The mapping and descriptors already sent stay valid.
  void close_descriptor() { fd_ = FileDescriptor(); }

 private:
  explicit SharedMapping(FileDescriptor fd);

  FileDescriptor fd_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// Reserves and maps whole pages that create() did not reserve and no process has used. `processes`
// do this at the same time, each for `bytes`. Errors: system, with the numbers, when the host or
// its memory cgroup has less memory left than all of them need.
LOCKSTEP_API void reserve_pages(std::string_view purpose, std::byte* data, std::size_t bytes,
                                int processes = 1);

// Maps all pages at once, which is cheaper than on first access if all are used.
LOCKSTEP_API void map_all_pages(std::byte* data, std::size_t bytes);

// Bytes that this process may still allocate: the minimum of the kernel's "available" memory and of
// what remains in each of its memory cgroups.
LOCKSTEP_API std::size_t available_memory();

// The lowest limit of this process's memory cgroups; empty if none has one.
LOCKSTEP_API std::optional<std::size_t> memory_limit();

// Words shared by processes must be lock-free.
static_assert(std::atomic<std::uint32_t>::is_always_lock_free &&
              std::atomic<std::uint64_t>::is_always_lock_free);

// Sleeps while `word`, which processes may share, equals `seen`, for `limit` at most. Wakeups may
// be spurious.
LOCKSTEP_API void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen,
                             std::chrono::nanoseconds limit);

LOCKSTEP_API void futex_wake_all(const std::atomic<std::uint32_t>& word);

// Cuts `from` to fit and appends a zero byte.
template <std::size_t n>
void copy_text(char (&to)[n], std::string_view from) {
  to[from.copy(to, n - 1)] = '\0';
}

// Number of OOM kills in this process's memory cgroup: `oom_kill` in memory.oom_control (v1) or
// memory.events (v2, including groups below it). Otherwise the host's, from /proc/vmstat; empty
// without any counter. In a container, the path in /proc/self/cgroup may not exist: the nearest
// group above it then counts. `root` contains /proc and /sys.
LOCKSTEP_API std::optional<std::uint64_t> oom_kills(const std::filesystem::path& root = "/");

}  // namespace lockstep
