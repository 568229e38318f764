// A command that copies a file to this host: "aws s3 cp {url} {path}".
//
// Blocking: run() waits for the command. Thread safety: run() may be called concurrently.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace lockstep::datasets {

class FetchCommand {
 public:
  // Words and shell as in TarShardsOptions::fetch; a shell gets quoted values. Errors: misuse
  // without {url} or {path}, and unless `timeout` is positive.
  FetchCommand(std::string text, bool shell, std::chrono::milliseconds timeout);

  std::chrono::milliseconds timeout() const { return timeout_; }

  // Runs the command in its own process group, which a timeout or an abort kills.
  // Errors: system, with the end of the command's output; timeout; aborted once is_stopped().
  void run(const std::string& url, const std::string& path,
           const std::function<bool()>& is_stopped) const;

  std::vector<std::string> words(const std::string& url, const std::string& path) const;

 private:
  const std::string text_;
  const bool shell_;
  const std::chrono::milliseconds timeout_;
};

}  // namespace lockstep::datasets
