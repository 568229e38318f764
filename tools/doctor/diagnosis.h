// Whether training can run on a host, and what to do where it cannot. No I/O.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/doctor/host.h"

namespace lockstep::doctor {

struct Finding {
  std::string what;
  std::string cure;
};

struct Diagnosis {
  std::vector<Finding> problems = {};  // Each keeps the job from running.
  std::vector<Finding> notes = {};     // Each makes it slow, or may surprise.
};

Diagnosis diagnose(const Host& host, const Job& job);

}  // namespace lockstep::doctor
