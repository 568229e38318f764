// Memory: mappings and words that processes of one host share, and what this process may still
// take.
//
// Thread safety: any thread may call any function; a SharedMapping is guarded by its owner.
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

// Bytes with padding to whole cache lines, so that a neighbour in memory begins at one.
constexpr std::size_t padded(std::size_t bytes) {
  return (bytes + cache_line - 1) / cache_line * cache_line;
}

// Bytes of a page of memory: 4096 on x86-64, up to 65536 on AArch64.
LOCKSTEP_API std::size_t page_size();

// `bytes` rounded up to whole pages, at least one.
LOCKSTEP_API std::size_t whole_pages(std::size_t bytes);

// Memory that several processes map, without a name in any file system. It is a memfd, so /dev/shm
// may be full, read-only or absent. create() seals its size. Access to reserved pages never raises
// SIGBUS.
class LOCKSTEP_API SharedMapping {
 public:
  // Creates zero-filled memory; `bytes` is rounded up to whole pages. `purpose` shows in
  // /proc/PID/maps. Errors: system, with the numbers, when the host or its memory cgroup has less
  // left. Also when the limit of file sizes (`ulimit -f`) is lower: it applies to memfds too.
  static SharedMapping create(std::string_view purpose, std::size_t bytes) {
    return create(purpose, bytes, bytes);
  }

  // The same, but reserves only the pages of the first `reserved` bytes, more than 0. The others
  // need reserve_pages() before their first use.
  static SharedMapping create(std::string_view purpose, std::size_t bytes, std::size_t reserved);

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

// Reserves and maps whole pages that create() left out, and no process has used. So many
// `processes` do it at once, for as many bytes each. Errors: system, with the numbers, when the
// host or its memory cgroup has less left than all of them need.
LOCKSTEP_API void reserve_pages(std::string_view purpose, std::byte* data, std::size_t bytes,
                                int processes = 1);

// Maps all pages at once. Cheaper than mapping each on first access, if all of them will be used.
LOCKSTEP_API void map_all_pages(std::byte* data, std::size_t bytes);

// Bytes that this process may still allocate: the least of the kernel's "available" and the rest
// that each memory cgroup above this process has.
LOCKSTEP_API std::size_t available_memory();

// The lowest limit of those memory cgroups; empty when none has a limit.
LOCKSTEP_API std::optional<std::size_t> memory_limit();

// Words that processes share need no lock and no address of their own.
static_assert(std::atomic<std::uint32_t>::is_always_lock_free &&
              std::atomic<std::uint64_t>::is_always_lock_free);

// Sleeps while `word` equals `seen`, for `limit` at most. May return early without a reason.
// Processes may share the word.
LOCKSTEP_API void futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen,
                             std::chrono::nanoseconds limit);

// Wakes all threads that sleep on `word`.
LOCKSTEP_API void futex_wake_all(const std::atomic<std::uint32_t>& word);

// Copies text into an array of a struct that processes share. Cuts `from` to fit, and always ends
// it with a zero byte.
template <std::size_t n>
void copy_text(char (&to)[n], std::string_view from) {
  to[from.copy(to, n - 1)] = '\0';
}

// Returns how many processes of this process's memory cgroup the OOM killer has ended: `oom_kill`
// in memory.oom_control (v1) or memory.events (v2, with the groups below it). If neither is
// readable, the host's count from /proc/vmstat. Empty without any counter. A process may see its
// cgroup under another path than /proc/self/cgroup says, for example in a container. The nearest
// group above it that has the file then counts. `root` is the folder that contains /proc and /sys.
LOCKSTEP_API std::optional<std::uint64_t> oom_kills(const std::filesystem::path& root = "/");

}  // namespace lockstep
