// A JobStatus as one JSON object, on its way from an agent to a client. Both are on the same host,
// but maybe of different versions: missing fields have their defaults.

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "lockstep/launch/status.h"

namespace lockstep {

std::string to_json(const JobStatus& job);

// Empty when `text` is not a job's status.
std::optional<JobStatus> job_status_in(const std::string& text);

}  // namespace lockstep
