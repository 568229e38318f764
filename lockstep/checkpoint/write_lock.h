// The right to write to a folder of checkpoints: a lock on its file .lock, in which the holder says
// who it is. The file stays; the kernel takes the lock back from a process that ends in any way.
//
// The text, for those who are refused, is JSON:
//   {"host": "node3", "pid": 42, "job": "a1b2", "attempt": 0}
//
// Torch-free. Thread safety: none.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "lockstep/base/file_descriptor.h"

namespace lockstep {

// Who holds a lock.
struct LockHolder {
  std::string host;
  std::int64_t pid = 0;
  std::string job;           // Empty when it is not known.
  std::int64_t attempt = 0;  // How often the job's ranks had been started anew.
};

// This process.
LockHolder this_holder();

class WriteLock {
 public:
  // Makes `root` if need be. Blocking: a second when another process has the lock, as it may be
  // ending; half a minute when it is of an earlier attempt of our own job, which is being ended.
  // Errors: system, naming the holder, when it still has it then; system, naming the file.
  explicit WriteLock(const std::filesystem::path& root, const LockHolder& self = this_holder());

  // Whether it is still the lock of that folder, which may have been removed and made anew.
  bool is_in_place() const;

 private:
  bool try_lock();
  void wait_for_holder(const LockHolder& self);
  std::optional<LockHolder> read_holder() const;
  void write_holder(const LockHolder& self) const;
  [[noreturn]] void refuse(const std::optional<LockHolder>& holder) const;

  std::filesystem::path file_;
  FileDescriptor fd_;
};

// Why this user may not write to `root`, such as "Read-only file system"; nothing where it may, or
// where only trying shows it.
std::optional<std::string> why_not_writable(const std::filesystem::path& root);

}  // namespace lockstep
