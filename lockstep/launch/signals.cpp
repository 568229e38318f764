// SPDX-License-Identifier: Apache-2.0
#include "lockstep/launch/signals.h"

#include <fmt/format.h>

#include <cstring>
#include <fstream>
#include <string_view>

namespace lockstep {
namespace {

// Returns the value of `name` in /proc/PID/status; empty when the process has gone.
std::string status_field(pid_t pid, std::string_view name) {
  std::ifstream in(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(name)) return line.substr(line.find_first_not_of(" \t", name.size()));
  return {};
}

}  // namespace

std::string signal_name(int signal) {
  const char* abbreviation = ::sigabbrev_np(signal);
  return abbreviation != nullptr ? fmt::format("SIG{}", abbreviation)
                                 : fmt::format("signal {}", signal);
}

bool catches(pid_t pid, int signal) {
  const std::string mask = status_field(pid, "SigCgt:");
  return !mask.empty() && (std::stoull(mask, nullptr, 16) >> (signal - 1) & 1) != 0;
}

bool is_stopped(pid_t pid) {
  const std::string state = status_field(pid, "State:");
  return state.starts_with('T') || state.starts_with('t');
}

}  // namespace lockstep
