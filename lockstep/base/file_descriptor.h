// File descriptors: ownership, polling until a deadline, complete writes.
//
// Blocking: poll_until(); writes until all bytes are accepted.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/base/api.h"
#include "lockstep/base/error.h"
#include "lockstep/base/time.h"

namespace lockstep {

class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FileDescriptor& operator=(FileDescriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }

  int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }  // The caller must close it.
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Returns a close-on-exec descriptor of the same file. Errors: system.
LOCKSTEP_API FileDescriptor duplicate(int descriptor);

// Timeout for poll() or epoll_wait(): -1 for no_deadline, otherwise at most 60 s: repeat until
// `deadline`.
inline int milliseconds_until(Deadline deadline) {
  if (deadline == no_deadline) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 60'000));
}

// Waits for one of `watched`; false at `deadline`. Signals do not end the wait.
template <std::size_t n>
bool poll_until(std::array<pollfd, n>& watched, Deadline deadline) {
  for (;;) {
    const int ready = ::poll(watched.data(), watched.size(), milliseconds_until(deadline));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) throw_errno("poll");
    if (ready == 0 && Clock::now() >= deadline) return false;
  }
}

// poll()'s events for `fd`; 0 if it was not watched. Calls in the order of `entries` take constant
// time, because each begins behind the entry that the last one found.
inline short events_of(const std::vector<pollfd>& entries, int fd) {
  thread_local std::size_t next = 0;
  if (next >= entries.size()) next = 0;
  const auto begin = entries.begin() + static_cast<std::ptrdiff_t>(next);
  const auto is_it = [fd](const pollfd& entry) { return entry.fd == fd; };
  auto found = std::find_if(begin, entries.end(), is_it);
  if (found == entries.end()) {
    found = std::find_if(entries.begin(), begin, is_it);
    if (found == begin) return 0;
  }
  next = static_cast<std::size_t>(found - entries.begin()) + 1;
  return found->revents;
}

// Errors: system.
LOCKSTEP_API void write_all(int descriptor, std::string_view text);

// Replaces `path` atomically by a file that only this user may read. After an error the old file
// stays. A process killed meanwhile leaves PATH.XXXXXX.
// If this user may write the file but create none in its folder, the file is overwritten in place.
// It keeps its mode, and an error may leave it partially written. Errors: system.
LOCKSTEP_API void write_small_file(const std::string& path, std::string_view text);

}  // namespace lockstep
