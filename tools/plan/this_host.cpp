// SPDX-License-Identifier: Apache-2.0
#include "tools/plan/this_host.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "lockstep/base/memory.h"

namespace lockstep::tools {

double memory_of_this_host() {
  const double all =
      static_cast<double>(::sysconf(_SC_PHYS_PAGES)) * static_cast<double>(page_size());
  const auto limit = memory_limit();
  return limit ? std::min(all, static_cast<double>(*limit)) : all;
}

std::optional<double> link_of_this_host(const std::filesystem::path& root) {
  constexpr double bytes_in_megabit = 1e6 / 8;
  std::optional<double> fastest;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(root / "sys/class/net", error)) {
    std::string state;
    double megabits = 0;  // -1 if the interface has no value.
    std::ifstream(entry.path() / "operstate") >> state;
    if (state != "up" || !(std::ifstream(entry.path() / "speed") >> megabits) || megabits <= 0)
      continue;
    fastest = std::max(fastest.value_or(0), megabits * bytes_in_megabit);
  }
  return fastest;
}

}  // namespace lockstep::tools
