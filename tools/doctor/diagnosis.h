// Diagnoses, without I/O, whether training can run on a host and what to do if not.

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
  std::vector<Finding> problems = {};  // Prevent the job from running.
  std::vector<Finding> notes = {};     // Slow it down, or may be unexpected.
};

Diagnosis diagnose(const Host& host, const Job& job);

// Without foreign control characters. `verbose` gives complete reasons.
std::string to_text(const Host& host, const Job& job, const Diagnosis& diagnosis,
                    bool verbose = false);

// docs/protocol.md lists the members.
std::string to_json(const Host& host, const Job& job, const Diagnosis& diagnosis);

}  // namespace lockstep::doctor
