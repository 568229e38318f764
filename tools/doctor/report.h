// How a host and its diagnosis are shown. No I/O.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tools/doctor/diagnosis.h"
#include "tools/doctor/host.h"

namespace lockstep::doctor {

// For people. `verbose` gives reasons in full. Control characters of others are replaced.
std::string to_text(const Host& host, const Job& job, const Diagnosis& diagnosis,
                    bool verbose = false);

// One object; docs/protocol.md names its members.
std::string to_json(const Host& host, const Job& job, const Diagnosis& diagnosis);

}  // namespace lockstep::doctor
