// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/signals.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <fstream>

namespace lockstep {

std::string signal_name(int signal) {
  const char* abbreviation = ::sigabbrev_np(signal);
  return abbreviation != nullptr ? fmt::format("SIG{}", abbreviation)
                                 : fmt::format("signal {}", signal);
}

bool catches(pid_t pid, int signal) {
  std::ifstream in(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(in, line);)
    if (line.starts_with("SigCgt:"))
      return (std::stoull(line.substr(std::strlen("SigCgt:")), nullptr, 16) >> (signal - 1) & 1) !=
             0;
  return false;
}

}  // namespace lockstep
