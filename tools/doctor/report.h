// Display of a host and its diagnosis. No I/O.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tools/doctor/diagnosis.h"
#include "tools/doctor/host.h"

namespace lockstep::doctor {

// For people. `verbose` gives reasons in full. Control characters in foreign text are replaced.
std::string to_text(const Host& host, const Job& job, const Diagnosis& diagnosis,
                    bool verbose = false);

// Returns one object; docs/protocol.md names its members.
std::string to_json(const Host& host, const Job& job, const Diagnosis& diagnosis);

}  // namespace lockstep::doctor
