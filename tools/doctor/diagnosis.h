// Judgement on a host: can training run there, and what to do if not. No I/O.

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
  std::vector<Finding> notes = {};     // Each slows the job down, or may surprise.
};

Diagnosis diagnose(const Host& host, const Job& job);

}  // namespace lockstep::doctor
