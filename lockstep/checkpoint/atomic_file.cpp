// SPDX-License-Identifier: Apache-2.0
#include "lockstep/checkpoint/atomic_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <string>
#include <system_error>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {

namespace {

// Follows links: the file is created where a link leads. Refuses anything but a regular file, for
// example a device.
std::filesystem::path regular_file(const std::filesystem::path& target) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(target, error);
  if (error == std::errc::too_many_symbolic_link_levels)
    throw_errno(target.string(), error.value());
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status))
    throw Error(Fault::system, target.string() + ": it is there already and is not a regular file");
  if (!std::filesystem::is_symlink(target, error)) return target;
  // The target of a link need not exist yet.
  const std::filesystem::path linked = std::filesystem::read_symlink(target, error);
  if (error) throw_errno(target.string(), error.value());
  return regular_file(target.parent_path() / linked);
}

}  // namespace

AtomicFile::AtomicFile(const std::filesystem::path& target, std::uint64_t size)
    : target_(regular_file(target)) {
  open_aside();
  try {
    file_->reserve(size);
  } catch (...) {
    remove_aside();
    throw;
  }
}

AtomicFile::~AtomicFile() { remove_aside(); }

void AtomicFile::commit() {
  file_->sync();
  if (::rename(aside_.c_str(), target_.c_str()) != 0) throw_errno(target_.string());
  aside_.clear();
  sync_directory(target_.parent_path());
}

void AtomicFile::open_aside() {
  static std::atomic<int> serial{0};
  std::filesystem::path path;
  do {  // An existing file was left by a killed process or belongs to another host.
    path = target_;
    path += ".tmp-" + std::to_string(::getpid()) + "-" + std::to_string(serial++);
  } while (::faccessat(AT_FDCWD, path.c_str(), F_OK, AT_SYMLINK_NOFOLLOW) == 0);
  file_.emplace(path, target_.string());
  aside_ = std::move(path);
}

void AtomicFile::remove_aside() {
  if (!aside_.empty()) ::unlink(aside_.c_str());
  aside_.clear();
}

}  // namespace lockstep
