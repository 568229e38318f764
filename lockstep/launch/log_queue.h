// Queue of this library's log lines while a launcher runs.
//
// The launcher's poll() loop writes them as all other output: without blocking, and between whole
// lines.
//
// Thread safety: the log may be called from any thread; watch() and take() belong to the loop's
// thread.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <poll.h>

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/base/file_descriptor.h"
#include "lockstep/base/log.h"

namespace lockstep {

class LogQueue {
 public:
  using Line = std::pair<LogLevel, std::string>;

  // Is the log's sink during its lifetime. Errors: system.
  LogQueue();
  ~LogQueue();
  LogQueue(const LogQueue&) = delete;
  LogQueue& operator=(const LogQueue&) = delete;

  void watch(std::vector<pollfd>& entries) const;
  std::vector<Line> take();

 private:
  FileDescriptor ready_;  // An eventfd, readable while there are lines.
  std::mutex mutex_;
  std::vector<Line> lines_;
};

}  // namespace lockstep
