// SPDX-License-Identifier: Apache-2.0
#include "lockstep/toolkit/datasets/shards/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::datasets {

std::optional<FileLock> FileLock::take(FileDescriptor fd, const std::string& name,
                                       Deadline deadline) {
  constexpr auto pause = std::chrono::milliseconds(5);
  while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    // NFS locks only files open for writing. Without a lock, processes may duplicate work.
    if (errno == EBADF) break;
    if (errno != EWOULDBLOCK) throw_errno(name);
    if (Clock::now() >= deadline) return std::nullopt;
    std::this_thread::sleep_for(pause);
  }
  return FileLock(std::move(fd));
}

std::optional<FileLock> FileLock::take(const std::string& path, Deadline deadline) {
  FileDescriptor fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!fd) throw_errno(path);
  return take(std::move(fd), path, deadline);
}

}  // namespace lockstep::datasets
