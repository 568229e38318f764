// The terminal of `lockstep top`: alternate screen, unbuffered keys, no echo. Thread safety: none.
// Lifetime: one at a time. The destructor, signals that end the command, and Ctrl-Z restore it.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <termios.h>

#include <chrono>
#include <optional>
#include <string>

namespace lockstep::tools {

class Terminal {
 public:
  static bool is_there();

  Terminal();
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  int columns() const;
  int rows() const;

  // False if the terminal has been closed.
  bool show(const std::string& text) const;

  // The next key within `limit`. 'q' also after SIGINT, SIGQUIT, SIGTERM and SIGHUP, and when the
  // terminal has been closed. '\0' at once after a change of size, and after SIGTSTP.
  std::optional<char> key(std::chrono::milliseconds limit) const;

 private:
  void enter() const;
  void leave() const;

  termios before_{};
};

}  // namespace lockstep::tools
