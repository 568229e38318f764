// Which engines between hosts there are.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/doctor/host.h"

namespace lockstep::doctor {

// Each is opened by a process of its own, `program` --engine NAME, as in a job: libraries that do
// not bear each other, crash or hang are a line in the report. Blocking: 20 s for each at worst.
std::vector<EngineState> examine_engines(const std::string& program);

// What that process does: opens the engine, writes what came of it to stdout, alone, and ends.
[[noreturn]] void report_engine(const std::string& name);

// What report_engine() wrote; that it is no such text is an engine that cannot be used, too.
EngineState engine_in(const std::string& name, const std::string& written, const std::string& end);

}  // namespace lockstep::doctor
