// Memory mappings and futexes shared by a host's processes, and this process's memory limits.
//
// Thread safety: full; a SharedMapping's owner synchronizes it. Blocking: futex_wait() only.

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

// In bytes: 4096 on x86-64, up to 65536 on AArch64.
LOCKSTEP_API std::size_t page_size();

// Rounds up to whole pages, at least one.
LOCKSTEP_API std::size_t whole_pages(std::size_t bytes);

// A memfd of sealed size, without /dev/shm. Access to reserved pages never raises SIGBUS.
class LOCKSTEP_API SharedMapping {
 public:
  // Creates zero-filled whole pages. `purpose` appears in /proc/PID/maps.
  // Errors: system, with both sizes, if `bytes` exceeds available_memory() or `ulimit -f`, which
  // also limits memfds.
  static SharedMapping create(std::string_view purpose, std::size_t bytes) {
    return create(purpose, bytes, bytes);
  }

  // Reserves only the pages of the first `reserved` bytes, at least one. Call reserve_pages()
  // before using the others.
  static SharedMapping create(std::string_view purpose, std::size_t bytes, std::size_t reserved);

  // Maps all of another process's mapping. Errors: corrupt if it is not sealed.
  static SharedMapping attach(FileDescriptor fd);

  SharedMapping(SharedMapping&& other) noexcept;
  SharedMapping& operator=(SharedMapping&&) = delete;
  ~SharedMapping();

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

  // To send to other processes; open until close_descriptor().
  int descriptor() const { return fd_.get(); }

  // The mapping and descriptors already sent stay valid.
  void close_descriptor() { fd_ = FileDescriptor(); }

 private:
  explicit SharedMapping(FileDescriptor fd);

  FileDescriptor fd_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// Reserves and maps whole pages that create() did not reserve. No process may have used them:
// this call may fill them with zeros. `processes` processes do so concurrently, each for `bytes`.
// Errors: system, with both sizes, if their sum exceeds available_memory().
LOCKSTEP_API void reserve_pages(std::string_view purpose, std::byte* data, std::size_t bytes,
                                int processes = 1);

// Maps all pages at once: cheaper than on first access if all are used.
LOCKSTEP_API void map_all_pages(std::byte* data, std::size_t bytes);

// Bytes that this process may still allocate: the minimum of /proc/meminfo's MemAvailable and the
// rest of each of its memory cgroups.
LOCKSTEP_API std::size_t available_memory();

// The lowest limit of this process's memory cgroups; empty if none has one.
LOCKSTEP_API std::optional<std::size_t> memory_limit();

// Words shared by processes must be lock-free.
static_assert(std::atomic<std::uint32_t>::is_always_lock_free &&
              std::atomic<std::uint64_t>::is_always_lock_free);

// Sleeps while `word` equals `seen`, for `limit` at most. Wakeups may be spurious.
LOCKSTEP_API void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen,
                             std::chrono::nanoseconds limit);

LOCKSTEP_API void futex_wake_all(const std::atomic<std::uint32_t>& word);

// Cuts `from` to fit, with a final zero byte.
template <std::size_t n>
void copy_text(char (&to)[n], std::string_view from) {
  to[from.copy(to, n - 1)] = '\0';
}

// Number of OOM kills in this process's memory cgroup: `oom_kill` in memory.oom_control (v1) or
// memory.events (v2, including groups below it). Without a cgroup: the host's, from /proc/vmstat;
// empty without any counter. If the path in /proc/self/cgroup does not exist, as in a container,
// the nearest ancestor counts. `root` contains /proc and /sys.
LOCKSTEP_API std::optional<std::uint64_t> oom_kills(const std::filesystem::path& root = "/");

}  // namespace lockstep
