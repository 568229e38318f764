// This host's name, for messages.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <string>

namespace lockstep {

inline std::string host_name() {
  char name[65] = {};
  ::gethostname(name, sizeof name - 1);
  return name;
}

}  // namespace lockstep
