// The right to write to a folder of checkpoints: a lock on its file .lock, which the kernel
// releases when the process ends. Its text, in JSON, identifies the holder.
//
// Without flock() on the file system, a warning is logged once, because a second job is not
// detected. Does not depend on LibTorch. Thread safety: none.

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
  std::int64_t attempt = 0;  // Number of restarts of the job's ranks so far.
};

LockHolder this_holder();

class WriteLock {
 public:
  // Creates `root` if necessary. Blocking: waits one second for another process, which may be
  // exiting, and half a minute for an earlier attempt of the same job. Errors: system, naming the
  // holder, if it still has the lock then; system, naming the file.
  explicit WriteLock(const std::filesystem::path& root, const LockHolder& self = this_holder());

  // Whether it is still the lock of that folder, which may have been removed and created again.
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

// Errors: system if `root`, or a folder that contains it, exists and is not a folder.
void require_folder(const std::filesystem::path& root);

// Why this user cannot write to `root`, such as "Read-only file system". Begins with another path
// if that is the cause. Empty if the user can write, or if only a write would show it.
std::optional<std::string> why_not_writable(const std::filesystem::path& root);

}  // namespace lockstep::checkpoint
