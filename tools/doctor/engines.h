// Engines for communication between hosts: which ones can be used here.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/doctor/host.h"

namespace lockstep::doctor {

// Opens each engine in a process of its own, `program` --engine NAME, as in a job. So libraries
// that conflict, crash or hang are only a line in the report. Blocking: at most 20 s for each.
std::vector<EngineState> examine_engines(const std::string& program);

// The work of that process: opens the engine, writes only the result to stdout, and ends.
[[noreturn]] void report_engine(const std::string& name);

// Parses the text of report_engine(). An invalid text means that the engine cannot be used.
EngineState engine_in(const std::string& name, const std::string& written, const std::string& end);

}  // namespace lockstep::doctor
