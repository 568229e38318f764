// The terminal of `lockstep top`: alternate screen, unbuffered keys, no echo.
//
// Thread safety: none. Lifetime: one at a time. The destructor restores the terminal, also when a
// signal ends the command. While Ctrl-Z suspends the command, the shell has its own screen.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <termios.h>

#include <chrono>
#include <optional>
#include <string>

namespace lockstep::tools {

class Terminal {
 public:
  // True if stdin and stdout are a terminal.
  static bool is_there();

  Terminal();
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  int columns() const;
  int rows() const;

  // Replaces the picture. Returns false if the terminal has been closed.
  bool show(const std::string& text) const;

  // Returns the next key within `limit`. Returns 'q' after SIGINT, SIGQUIT, SIGTERM and SIGHUP, and
  // when the terminal has been closed. Returns '\0' at once when its size has changed, and when the
  // command continues after SIGTSTP.
  std::optional<char> key(std::chrono::milliseconds limit) const;

 private:
  void enter() const;
  void leave() const;

  termios before_{};
};

}  // namespace lockstep::tools
