// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <string>
#include <utility>

#include "lockstep/comm/error.h"

namespace lockstep {
namespace {

constexpr mode_t everybody = 0666;  // Less the process's umask.

// A rename outlasts a power failure only once its directory is on the disk.
void sync_directory(const std::filesystem::path& directory) {
  const std::filesystem::path name = directory.empty() ? "." : directory;
  const FileDescriptor fd(::open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  // EINVAL: a file system that has no notion of it, such as some that lie on a network.
  if (!fd || (::fsync(fd.get()) != 0 && errno != EINVAL)) throw_errno(name.string());
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path target, std::uint64_t size)
    : target_(std::move(target)) {
  open_aside();
  try {
    reserve(size);
  } catch (...) {
    ::unlink(aside_.c_str());
    throw;
  }
}

AtomicFile::~AtomicFile() {
  if (!aside_.empty()) ::unlink(aside_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t done = ::write(fd_.get(), bytes.data(), bytes.size());
    if (done >= 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(done));
    } else if (errno != EINTR) {
      fail();
    }
  }
}

void AtomicFile::commit() {
  // After a failed fsync the kernel may have dropped the pages: trying again would prove nothing.
  if (::fsync(fd_.get()) != 0) fail();
  if (::rename(aside_.c_str(), target_.c_str()) != 0) fail();
  aside_.clear();
  sync_directory(target_.parent_path());
}

void AtomicFile::open_aside() {
  static std::atomic<int> serial{0};
  do {
    aside_ = target_;
    aside_ += ".tmp-" + std::to_string(::getpid()) + "-" + std::to_string(serial++);
    fd_ =
        FileDescriptor(::open(aside_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, everybody));
  } while (!fd_ && errno == EEXIST);  // Left by a process that was killed, or of another host's.
  if (fd_) return;
  aside_.clear();
  fail();
}

void AtomicFile::reserve(std::uint64_t size) {
  if (size == 0 || ::fallocate(fd_.get(), 0, 0, static_cast<off_t>(size)) == 0) return;
  if (errno != EOPNOTSUPP && errno != ENOSYS) fail();
}

void AtomicFile::fail() const { throw_errno(target_.string()); }

}  // namespace lockstep
