// Place where one rank leaves the exception that ends it, as torchrun's error.json does: a file
// among its logs, or, without logs, a memfd that only that rank and its agent know.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "lockstep/base/file_descriptor.h"

namespace lockstep {

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

}  // namespace lockstep
