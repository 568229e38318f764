// The right to write to a folder of checkpoints: a lock on its file .lock, which identifies the
// holder. The file stays; the kernel releases the lock however the process ends.
//
// On file systems without flock(), the folder can be written to without a lock: a warning is logged
// once, because a second job is not detected.
//
// The file's text, for the messages of rejected processes, is JSON:
//   {"host": "node3", "pid": 42, "job": "a1b2", "attempt": 0}
//
// Does not depend on LibTorch. Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "lockstep/base/file_descriptor.h"

namespace lockstep::checkpoint {

// The holder of a lock.
struct LockHolder {
  std::string host;
  std::int64_t pid = 0;
  std::string job;           // Empty if unknown.
  std::int64_t attempt = 0;  // Number of restarts of the job's ranks so far.
};

// This process.
LockHolder this_holder();

class WriteLock {
 public:
  // Creates `root` if necessary. Blocking: if another process has the lock, waits one second,
  // because that process may be exiting. Waits half a minute for an earlier attempt of our own job,
  // which is being terminated.
  // Errors: system, naming the holder, if it still has the lock then; system, naming the file.
  explicit WriteLock(const std::filesystem::path& root, const LockHolder& self = this_holder());

  // Whether it is still the lock of that folder. The folder may have been removed and created
  // again.
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

// Errors: system if `root`, or a folder that it is to be in, exists and is not a folder.
void require_folder(const std::filesystem::path& root);

// Returns why this user cannot write to `root`, for example "Read-only file system". The text
// begins with the path of another file or folder if that is the cause. Empty if the user can write,
// or if only a write would show it.
std::optional<std::string> why_not_writable(const std::filesystem::path& root);

}  // namespace lockstep::checkpoint
