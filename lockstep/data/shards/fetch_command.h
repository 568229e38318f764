// A command that copies a file from somewhere to this host: "aws s3 cp {url} {path}".
//
// Blocking: run() until the command has ended.
// Thread safety: run() may be called from several threads at once.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace lockstep::data {

class FetchCommand {
 public:
  // The command is divided into words at spaces; {url} and {path} are replaced within words. With
  // `shell`, /bin/sh runs the whole text, with both in quotes. Errors: misuse for a text without
  // {url} or without {path}, and unless `timeout` is positive.
  FetchCommand(std::string text, bool shell, std::chrono::milliseconds timeout);

  std::chrono::milliseconds timeout() const { return timeout_; }

  // Runs the command once, in a process group of its own. Errors: system, with the end of what it
  // printed; timeout; aborted once is_stopped() returns true. The process group is killed then.
  void run(const std::string& url, const std::string& path,
           const std::function<bool()>& is_stopped) const;

  // The program and its arguments.
  std::vector<std::string> words(const std::string& url, const std::string& path) const;

 private:
  const std::string text_;
  const bool shell_;
  const std::chrono::milliseconds timeout_;
};

}  // namespace lockstep::data
