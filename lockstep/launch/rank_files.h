// Files for the ranks' output and exceptions, in torchrun's layout:
// DIRECTORY/JOB_RANDOM/attempt_K/LOCAL_RANK/NAME.
//
// They are new and private to this user: folders have mode 0700, files 0600. Existing files and
// symbolic links are never opened.
//
// Thread safety: none. Blocking: while the file system creates or writes a file.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "lockstep/base/file_descriptor.h"

namespace lockstep::launch {

class LogFile {
 public:
  LogFile() = default;
  LogFile(FileDescriptor fd, std::string path) : fd_(std::move(fd)), path_(std::move(path)) {}

  explicit operator bool() const { return static_cast<bool>(fd_); }
  const std::string& path() const { return path_; }

  // Writes all bytes and returns 0. On failure it returns the errno and closes the file.
  int write(std::string_view bytes);

 private:
  FileDescriptor fd_;
  std::string path_;
};

class RankFiles {
 public:
  // Creates `directory` if it does not exist; if empty, there are no files. Errors: misuse when it
  // cannot be created or written.
  explicit RankFiles(std::string directory);

  explicit operator bool() const { return !directory_.empty(); }

  // The number must be new. Errors: system.
  void begin_attempt(const std::string& job_id, int attempt);

  // Errors: system when the file already exists, or cannot be created.
  LogFile create(int local_rank, std::string_view name) const;

  // Creates the rank's folder. Empty without a directory, or before the first attempt.
  std::string path_of(int local_rank, std::string_view name) const;

 private:
  FileDescriptor folder_of(int local_rank) const;

  std::string directory_;
  // Open, because the paths may be replaced.
  FileDescriptor job_;
  std::string job_path_;
  FileDescriptor attempt_;
  std::string attempt_path_;
};

// For a rank's exception, like torchrun's error.json: among its logs or, without logs, a memfd
// shared with its agent.
class ErrorFile {
 public:
  ErrorFile() = default;

  // `path` is the file that the rank may create; empty for a memfd. Errors: system.
  explicit ErrorFile(std::string path);

  const std::string& path() const { return path_; }
  int descriptor() const { return memory_.get(); }  // -1 when there is a path.

  // Type and text; empty if the rank has written no valid exception.
  std::string message() const;

 private:
  std::string path_;
  FileDescriptor memory_;
};

}  // namespace lockstep::launch
