// Files for the ranks' output and exceptions, in the layout of LogOptions::directory (run.h).
//
// The files are new and private to this user: folders have mode 0700, files 0600. Existing files
// are never written, nor symbolic links followed below DIRECTORY.
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

  // Returns 0. On failure, closes the file and returns the errno.
  int write(std::string_view bytes);

 private:
  FileDescriptor fd_;
  std::string path_;
};

class RankFiles {
 public:
  // An empty path: no files. Otherwise creates the folder if absent. Errors: misuse when it cannot
  // be created or written.
  explicit RankFiles(std::string directory);

  explicit operator bool() const { return !directory_.empty(); }

  // `attempt` must be new. Errors: system.
  void begin_attempt(const std::string& job_id, int attempt);

  // Errors: system, also if the file exists.
  LogFile create(int local_rank, std::string_view name, int incarnation = 0) const;

  // Creates the rank's folder. Empty without a directory, or before the first attempt.
  std::string path_of(int local_rank, std::string_view name, int incarnation = 0) const;

 private:
  FileDescriptor folder_of(int local_rank, int incarnation) const;

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

  // The rank may create the file at `path`; empty for a memfd. Errors: system.
  explicit ErrorFile(std::string path);

  const std::string& path() const { return path_; }
  int descriptor() const { return memory_.get(); }  // -1 with a path.

  // Type and text; empty without a valid exception.
  std::string message() const;

 private:
  std::string path_;
  FileDescriptor memory_;
};

}  // namespace lockstep::launch
