// The files that the ranks' output goes to, in the layout of torchrun:
// DIRECTORY/JOB_RANDOM/attempt_K/LOCAL_RANK/NAME.
//
// Everything below DIRECTORY is made anew and is this user's alone: folders have mode 0700, files
// 0600, and nothing that is there already, a symbolic link least of all, is ever opened.
//
// Thread safety: none. Blocking: never, beyond what a file system takes to make a file.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "lockstep/base/file_descriptor.h"

namespace lockstep {

// A file that is written to its end, while its disk has room.
class LogFile {
 public:
  LogFile() = default;
  LogFile(FileDescriptor fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  explicit operator bool() const { return static_cast<bool>(fd_); }
  const std::string& path() const { return path_; }

  // Gives it to a rank, which then writes it by itself.
  FileDescriptor release() && { return std::move(fd_); }

  // Writes all of it and returns 0, or the errno of what did not go in: the file is closed then.
  int write(std::string_view bytes);

 private:
  FileDescriptor fd_;
  std::string path_;
};

class RankFiles {
 public:
  // Makes `directory` when it is not there; there will be no files when it is empty.
  // Errors: misuse when it cannot be made or written to.
  explicit RankFiles(std::string directory);

  explicit operator bool() const { return !directory_.empty(); }

  // Files that are made from now on are those of this attempt; each has another number.
  // Errors: system.
  void begin_attempt(const std::string& job_id, int attempt);

  // Errors: system when the file is there already, or cannot be made.
  LogFile create(int local_rank, std::string_view name) const;

  // Makes the rank's folder. Empty without a directory, or before the first attempt.
  std::string path_of(int local_rank, std::string_view name) const;

 private:
  FileDescriptor folder_of(int local_rank) const;

  std::string directory_;
  FileDescriptor job_;  // The job's folder, in case its path comes to mean something else,
  std::string job_path_;
  FileDescriptor attempt_;  // and the attempt's.
  std::string attempt_path_;
};

}  // namespace lockstep
