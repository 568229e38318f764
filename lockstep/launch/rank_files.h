// Files for the ranks' output and exceptions, in the layout of torchrun:
// DIRECTORY/JOB_RANDOM/attempt_K/LOCAL_RANK/NAME.
//
// Everything below DIRECTORY is newly made and belongs to this user alone: folders have mode 0700,
// files 0600. Existing files and symbolic links are never opened.
//
// Thread safety: none. Blocking: as long as the file system takes to make or write a file.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "lockstep/base/file_descriptor.h"

namespace lockstep::launch {

// A file that is written to its end, as long as its disk has room.
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
  // Makes `directory` when it does not exist; with an empty one there are no files. Errors: misuse
  // when it cannot be made or written to.
  explicit RankFiles(std::string directory);

  explicit operator bool() const { return !directory_.empty(); }

  // Starts the files of an attempt; each attempt has another number. Errors: system.
  void begin_attempt(const std::string& job_id, int attempt);

  // Errors: system when the file exists already, or cannot be made.
  LogFile create(int local_rank, std::string_view name) const;

  // Makes the rank's folder. Returns an empty path without a directory, or before the first
  // attempt.
  std::string path_of(int local_rank, std::string_view name) const;

 private:
  FileDescriptor folder_of(int local_rank) const;

  std::string directory_;
  // The open folders of the job and of the attempt: their paths may come to mean something else.
  FileDescriptor job_;
  std::string job_path_;
  FileDescriptor attempt_;
  std::string attempt_path_;
};

// Place where a rank leaves the exception that ends it, as torchrun's error.json does: a file
// among its logs, or, without logs, a memfd that only that rank and its agent know.
class ErrorFile {
 public:
  ErrorFile() = default;

  // `path` is the file that the rank may create; empty for a memfd. Errors: system.
  explicit ErrorFile(std::string path);

  // Path given to the rank, which has inherited descriptor().
  const std::string& path() const { return path_; }
  int descriptor() const { return memory_.get(); }  // -1 when there is a path.

  // Returns the exception's type and text; empty when the rank has left no valid one.
  std::string message() const;

 private:
  std::string path_;
  FileDescriptor memory_;
};

}  // namespace lockstep::launch
