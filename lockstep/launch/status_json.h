// A JobStatus on its way from an agent to whoever asked: one JSON object. Both are of the same
// host, not always of the same version: what is missing has its default.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "lockstep/launch/status.h"

namespace lockstep {

std::string to_json(const JobStatus& job);

// Empty when it is none.
std::optional<JobStatus> job_status_in(const std::string& text);

}  // namespace lockstep
