// The right to write to a folder of checkpoints: a lock on its file .lock, which the kernel
// releases when the process ends. The file identifies the holder, in JSON.
//
// On a file system without flock(), a second job is not detected, and a warning is logged once per
// folder. Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "lockstep/base/file_descriptor.h"

namespace lockstep::checkpoint {

struct LockHolder {
  std::string host;
  std::int64_t pid = 0;
  std::string job;           // Empty if unknown.
  std::int64_t attempt = 0;  // Restarts of the job's ranks.
};

LockHolder this_holder();

class WriteLock {
 public:
  // Creates `root` if necessary. Blocking: up to 1 s for another process, which may be exiting; up
  // to 30 s for an earlier attempt of the same job. Errors: system, naming the holder, if it still
  // has the lock; system, naming the file.
  explicit WriteLock(const std::filesystem::path& root, const LockHolder& self = this_holder());

  // False after the folder was removed and created again.
  bool is_in_place() const;

 private:
  bool try_lock();
  void wait_for_holder(const LockHolder& self);
  std::optional<LockHolder> read_holder() const;
  void write_holder(const LockHolder& self) const;
  [[noreturn]] void refuse(const std::optional<LockHolder>& holder) const;

  std::filesystem::path file_;
  FileDescriptor fd_;
  bool is_locked_ = false;
};

// Errors: system if `root` or a parent of it exists and is not a folder.
void require_folder(const std::filesystem::path& root);

// Such as "Read-only file system"; begins with another path if that is the cause. Empty if
// faccessat() finds no reason; a write may still fail.
std::optional<std::string> why_not_writable(const std::filesystem::path& root);

}  // namespace lockstep::checkpoint
