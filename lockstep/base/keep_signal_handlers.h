// Restores this process's signal handlers after foreign code has run. Network libraries that
// engines load install handlers that print a backtrace and exit with code 1.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <signal.h>

#include <array>
#include <cstddef>

namespace lockstep {

class KeepSignalHandlers {
 public:
  KeepSignalHandlers() {
    for (std::size_t i = 0; i < before_.size(); ++i)
      known_[i] = ::sigaction(static_cast<int>(i) + 1, nullptr, &before_[i]) == 0;
  }
  ~KeepSignalHandlers() {
    for (std::size_t i = 0; i < before_.size(); ++i)
      if (known_[i]) ::sigaction(static_cast<int>(i) + 1, &before_[i], nullptr);
  }
  KeepSignalHandlers(const KeepSignalHandlers&) = delete;
  KeepSignalHandlers& operator=(const KeepSignalHandlers&) = delete;

 private:
  std::array<struct sigaction, 31> before_{};  // Handlers of signals 1 to 31.
  std::array<bool, 31> known_{};
};

}  // namespace lockstep
