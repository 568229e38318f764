// The terminal as `lockstep top` uses it: another screen, keys without a return, no echo.
//
// Thread safety: none. Lifetime: one at a time; the destructor gives back what was there before,
// also when a signal ends the command. While Ctrl-Z suspends it, the shell has its own screen.

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

  // Replaces the picture. Returns false if the terminal has gone.
  bool show(const std::string& text) const;

  // Returns the next key, if one comes within `limit`. Returns 'q' after SIGINT, SIGQUIT, SIGTERM
  // and SIGHUP, and when the terminal has gone. Returns '\0' at once when its size has changed, and
  // when the command goes on after SIGTSTP.
  std::optional<char> key(std::chrono::milliseconds limit) const;

 private:
  void enter() const;
  void leave() const;

  termios before_{};
};

}  // namespace lockstep::tools
