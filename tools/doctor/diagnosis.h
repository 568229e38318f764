// Diagnoses whether training can run on a host and what to do if not, and formats the report.
//
// No I/O: report.cpp formats the texts, lockstep_doctor.cpp prints them.

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
  std::vector<Finding> problems = {};  // Each prevents the job from running.
  std::vector<Finding> notes = {};     // Each slows the job down, or may be unexpected.
};

Diagnosis diagnose(const Host& host, const Job& job);

// Returns the report for people. `verbose` gives complete reasons. Control characters in foreign
// text are replaced.
std::string to_text(const Host& host, const Job& job, const Diagnosis& diagnosis,
                    bool verbose = false);

// Returns the report as one object; docs/protocol.md lists its members.
std::string to_json(const Host& host, const Job& job, const Diagnosis& diagnosis);

}  // namespace lockstep::doctor
