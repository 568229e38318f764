// SPDX-License-Identifier: Apache-2.0
#include "lockstep/base/signal_names.h"

#include <fmt/format.h>
#include <signal.h>
#include <string.h>

namespace lockstep {

std::string signal_name(int signal) {
  const char* const abbreviation = ::sigabbrev_np(signal);
  return abbreviation != nullptr ? fmt::format("SIG{}", abbreviation)
                                 : fmt::format("signal {}", signal);
}

std::string signal_of_exit_code(int exit_code) {
  const char* const abbreviation = exit_code > 128 ? ::sigabbrev_np(exit_code - 128) : nullptr;
  return abbreviation != nullptr ? fmt::format("SIG{}", abbreviation) : "";
}

std::string describe_exit_code(int exit_code) {
  const std::string signal = signal_of_exit_code(exit_code);
  return fmt::format(
      "exited with code {}{}", exit_code,
      signal.empty() ? "" : fmt::format(" (as a shell reports a child killed by {})", signal));
}

}  // namespace lockstep
